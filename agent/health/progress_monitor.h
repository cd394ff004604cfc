#pragma once
// Checks the workers' progress from time to time, reports which one is stuck, and ends it if the
// user wants that. Owned by Agent. Costs nothing between two checks.

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "agent/health/progress_files.h"
#include "agent/health/stall_watch.h"
#include "common/sync_counts.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// Counts of the sync timers of this node's workers that have not been sent to the daemon. Pure:
// ProgressMonitor adds what it reads from the workers' pages, Agent sends it with a heartbeat.
class SyncLedger {
 public:
  // The most that one message reports of one counter. A page that holds more is damaged.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 50;

  // A new worker, with a page of zeros.
  void began(int local_rank) { seen_[local_rank] = {}; }
  // `now`: since the worker began. A page may hold anything.
  void see(int local_rank, int rank, const WorkerCounts& now);

  // Nothing: there is nothing new.
  const std::optional<rendezvous::SyncIncrease>& unreported() const { return unreported_; }
  void mark_reported() { unreported_.reset(); }

 private:
  LateCounts& late(int rank);

  std::map<int, WorkerCounts> seen_;  // By local rank.
  std::optional<rendezvous::SyncIncrease> unreported_;
};

class ProgressMonitor {
 public:
  ProgressMonitor(boost::asio::io_context& loop, StallPolicy policy);

  // Before a worker is started: "DDPRUN_PROGRESS=..." for its environment; empty if it is to report
  // nothing.
  std::string prepare(int local_rank);
  // -1: it has no rank yet, and no worker waits for it until it is seated.
  void started(int local_rank, int rank, int pid);
  void exited(int local_rank);
  // It goes on with another rank, or has left its round and waits for one.
  void seated(int local_rank, int rank);
  void left(int local_rank);
  // To all workers: a rank of the round is gone, and why.
  void notify_loss(int lost_rank, const std::string& why);
  // Of the worker's next step. False: it has begun no step of a job, or there is no such worker.
  bool request_bundle(int local_rank);
  // What the workers' sync timers have counted and was not reported yet; call sync_reported() when
  // it was.
  const std::optional<rendezvous::SyncIncrease>& unreported_sync();
  void sync_reported() { sync_.mark_reported(); }
  // What each of the workers has counted, whenever its page is read.
  std::function<void(int local_rank, const WorkerCounts& counts)> on_counts;
  void read_counts();
  // Workers are stopped on purpose, or go on.
  void pause(bool paused);

  // Finds where the workers are, as a sentence or nothing, for the message that one is stuck; null:
  // not available.
  std::function<void(std::function<void(const std::string&)>)> query_where;
  // To end a stuck worker; reason() is the text about it once it has ended.
  std::function<void(int local_rank, int signal)> on_kill;
  std::string reason(int local_rank) const;
  WorkerFate fate(int local_rank) const;  // Of one that has ended.
  // Whether one that lives has ended its part in its group by itself: not because of a peer.
  bool has_left(int local_rank);
  bool ended_stuck() const { return !reasons_.empty(); }  // One of them was ended for that.
  bool paused() const { return paused_; }

 private:
  struct Worker {
    ProgressFile file;
    int rank = -1;  // The last that it had.
    int pid = 0;
    bool seated = false;
    std::string reason{};
    std::optional<TimePoint> kill_at{};
    bool aborted = false;
  };

  void see_sync(int local_rank, Worker& worker);
  void check_later();
  void check();
  void found(const StallWatch::Findings& findings, const std::map<int, int>& pids,
             const std::string& where);
  void found_stuck(const Stall& stall, const std::string& where);
  void kill_again();
  std::string state_of(const Worker& worker) const;

  StallPolicy policy_;
  StallOptions options_;
  StallWatch watch_;
  std::map<int, Worker> workers_;  // By local rank.
  SyncLedger sync_;
  std::map<int, std::string> reasons_;  // Of those that have ended.
  std::map<int, WorkerFate> fates_;     // The same.
  boost::asio::steady_timer timer_;
  bool check_scheduled_ = false;
  bool querying_ = false;  // Where they are.
  bool paused_ = false;
};

}  // namespace ddprun::agent
