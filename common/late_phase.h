#pragma once
// In which phase of its steps a rank kept the others waiting longest. Pure. Used by the summary of
// --report and by the daemon's status.

#include "common/sync_counts.h"

namespace ddprun {

constexpr const char* worst_phase(const LateCounts& counts) {
  std::size_t most = LateCounts::Row("outside_ns").at;
  for (std::size_t i = most; i < LateCounts::kSize; ++i) {
    if (counts.values[i] > counts.values[most]) most = i;
  }
  return LateCounts::kRows[most].phase;
}

}  // namespace ddprun
