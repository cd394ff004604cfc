#pragma once
// The records of a daemon's ended runs on disk, in a folder of its own: what ddprunctl
// asks for, beyond the life of this process. Used by daemon/server.

#include <string>
#include <vector>

#include "common/system/record_folder.h"
#include "rendezvous/run/ended_run.h"

namespace ddprun::rendezvous {

class History {
 public:
  static constexpr RecordFolder::Limits kLimits{.records = 100,
                                                .bytes = std::size_t{64} << 20,
                                                .record_bytes = std::size_t{4} << 20};

  // `sync`: wait for the disk with each record.
  History(std::string folder, bool sync) : folder_(std::move(folder), kLimits), sync_(sync) {}

  // What former daemons have left, the oldest first. What is no record is passed over.
  std::vector<RunRecord> records() const;

  // The record of a run that has just ended, with its times. A disk that is full costs the record,
  // not the run: then it is as long here as this process lives.
  RunRecord put(EndedRun ended);

 private:
  RecordFolder folder_;
  bool sync_;
  bool complained_ = false;
};

}  // namespace ddprun::rendezvous
