#pragma once
// The records of ended runs in etcd, for daemons of which one leads at a time: the next leader
// answers for runs that ended under this one. Bounded, because etcd is not an archive.
//
// PREFIX/history/TERM/SEQUENCE is a record, as JSON. In the order of the keys the oldest is first.
//
// Written by the leader only, with the same guard as the journal. Nothing waits for it, neither the
// decisions nor the take-over: the former leaders' records are read while this daemon leads.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <string>

#include "rendezvous/etcd/etcd_election.h"
#include "rendezvous/journal/run_history.h"

namespace ddprun::rendezvous {

class EtcdHistory : public RunArchive {
 public:
  struct Limits {
    std::size_t records = 100;
    std::size_t bytes = std::size_t{16} << 20;
    // In base64 a third more; etcd takes 1.5 MiB in one request.
    std::size_t record_bytes = std::size_t{512} * 1024;
  };
  struct Leader {
    std::string key;  // What this daemon leads by, ...
    Term term = 0;    // ... and since when.
  };

  EtcdHistory(boost::asio::io_context& io, const EtcdOptions& options, Leader leader)
      : EtcdHistory(io, options, std::move(leader), Limits()) {}
  EtcdHistory(boost::asio::io_context& io, const EtcdOptions& options, Leader leader,
              Limits limits);

  void start(Remember remember) override;
  void put(RunRecord record) override;
  void leave(std::function<void()> done) override;

 private:
  static constexpr int kTries = 5;  // Of one request; then it is given up and logged.

  struct Kept {
    std::string key;
    std::size_t bytes = 0;
  };
  using Take = std::function<Result<void>(const std::string& body)>;

  void send(const etcd::Request& request, int tries, const Take& take,
            const std::function<void()>& give_up);
  void read(const std::string& first);
  void take(const etcd::Range& range);
  void write();
  void end_write();
  void settle();
  std::size_t surplus(std::size_t more) const;
  std::string folder() const { return options_.prefix + "/history/"; }

  const EtcdOptions options_;
  const Leader leader_;
  const Limits limits_;
  EtcdClient client_;
  boost::asio::steady_timer retry_;
  Remember remember_;
  bool read_ = false;  // What former leaders left.
  bool writing_ = false;
  bool over_ = false;  // Another daemon leads.
  bool leaving_ = false;
  std::int64_t sequence_ = 0;
  std::deque<Kept> kept_;        // In etcd, the oldest first.
  std::deque<RunRecord> later_;  // Put before all was read.
  struct Unwritten {
    std::string run_id, text;
  };
  std::deque<Unwritten> unwritten_;
  std::function<void()> on_left_;
};

}  // namespace ddprun::rendezvous
