#pragma once
// What the sync timers of this node's workers have counted and the daemon has not been told. Pure:
// ProgressMonitor puts in what it reads in the workers' pages, Agent sends it with a heartbeat.

#include <cstdint>
#include <map>
#include <optional>

#include "common/sync_counts.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

class SyncLedger {
 public:
  // What is told in one message at most, of one counter: more is nonsense that a page held.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 50;

  // A new worker, with a page of zeros.
  void began(int local_rank) { seen_[local_rank] = {}; }
  // `now`: since the worker began. A page may hold anything.
  void see(int local_rank, int rank, const WorkerCounts& now);

  // Nothing: there is nothing new.
  const std::optional<rendezvous::SyncIncrease>& untold() const { return untold_; }
  void told() { untold_.reset(); }

 private:
  LateCounts& late(int rank);

  std::map<int, WorkerCounts> seen_;  // By local rank.
  std::optional<rendezvous::SyncIncrease> untold_;
};

}  // namespace ddprun::agent
