#pragma once
// What the sync timers of this node's workers have counted and the daemon has not been told. Pure:
// ProgressMonitor puts in what it reads in the workers' pages, Agent sends it with a heartbeat.

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// Sums since a worker began; see ProgressPage::Sync. A page may hold anything.
struct SyncSample {
  std::uint64_t steps = 0, bytes = 0;
  std::array<std::uint64_t, 3> phase_ns{};
  std::uint64_t exposed_ns = 0, waited_ns = 0, comm_ns = 0;
  std::uint64_t late_steps = 0;
  std::array<std::uint64_t, 3> late_ns{};
  std::uint64_t busbw = 0;
};

class SyncLedger {
 public:
  // What is told in one message at most, of one sum: more is nonsense that a page held.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 50;

  // A new worker, with a page of zeros.
  void began(int local_rank) { seen_[local_rank] = {}; }
  void see(int local_rank, int rank, const SyncSample& now);

  // Nothing: there is nothing new.
  const std::optional<rendezvous::SyncCounts>& untold() const { return untold_; }
  void told() { untold_.reset(); }

 private:
  rendezvous::LateRank& late(int rank);

  std::map<int, SyncSample> seen_;  // By local rank.
  std::optional<rendezvous::SyncCounts> untold_;
};

}  // namespace ddprun::agent
