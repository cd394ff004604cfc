#pragma once
// What the sync timers of a run's workers have counted, for the daemon's metrics. Nodes tell what
// has been added, so that sums only grow, whoever comes, goes or starts again; a daemon that starts
// again begins at 0, as its other counters do. Kept by the Coordinator beside the run: nothing of
// it decides anything, and no journal has it. Pure.

#include <cstddef>
#include <map>
#include <string>

#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

class SyncTotals {
 public:
  // Ranks that are remembered one by one; those beyond are summed up as rank -1.
  static constexpr std::size_t kLateRanksMax = 64;

  void add(const SyncIncrease& more);

  const SyncCounts& sums() const { return sums_; }
  const std::map<int, LateCounts>& late() const { return late_; }  // By rank.
  // The phase in which a rank was late when it was last; empty: not known.
  std::string late_phase(int rank) const;

 private:
  SyncCounts sums_;
  std::map<int, LateCounts> late_;
  std::map<int, LateCounts> last_late_;  // The last addition of each.
};

}  // namespace ddprun::rendezvous
