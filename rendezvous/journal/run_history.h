#pragma once
// Records of ended runs; they survive a restart of the daemon and are read by ddprunctl. Used by
// daemon/server. Those of a daemon with a folder of its own are here, those of daemons on etcd in
// etcd/etcd_history.

#include <functional>
#include <string>
#include <utility>

#include "common/system/record_folder.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

class RunArchive {
 public:
  using Remember = std::function<void(RunRecord)>;

  virtual ~RunArchive() = default;

  // The first call. `remember` gets what former daemons have left, the oldest first, and then what
  // is put; perhaps later.
  virtual void start(Remember remember) = 0;
  // If it cannot be kept, it is here for as long as this process lives.
  virtual void put(RunRecord record) = 0;
  // The last call. `done` once nothing is under way any more.
  virtual void leave(std::function<void()> done) { done(); }
};

// The record of a run that has just ended, with its times.
RunRecord finished_record(EndedRun ended);

// In a folder. A disk that is full costs the record, not the run.
class FolderHistory : public RunArchive {
 public:
  static constexpr RecordFolder::Limits kLimits{
      .records = 100, .bytes = std::size_t{64} << 20, .record_bytes = std::size_t{4} << 20};

  // `sync`: wait for the disk with each record.
  FolderHistory(std::string folder, bool sync) : folder_(std::move(folder), kLimits), sync_(sync) {}

  // Anything but a record is skipped.
  void start(Remember remember) override;
  void put(RunRecord record) override;

 private:
  RecordFolder folder_;
  bool sync_;
  Remember remember_;
  bool complained_ = false;
};

}  // namespace ddprun::rendezvous
