#pragma once
// ZeRO stage 1: each rank keeps the optimizer state of its share of the parameters, steps these,
// and gives them to the others. What needs no framework of it; libtorch users have
// ddprun::torch::ZeroRedundancyOptimizer.
//
//   const auto shares = ddprun::partition_greedily(sizes, group.world_size());
//   ... after finish_backward(): step parameters shares[group.rank()] ...
//   ddprun::broadcast_shares(group, shares, values);

#include "ddprun/cxx20.h"

#include <cstdint>
#include <span>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// By rank: the numbers of its parameters. Largest first, each to the rank that has the fewest
/// elements so far, as PyTorch's ZeroRedundancyOptimizer deals them out; communicates nothing, and
/// is the same on all ranks. Throws Error(bad_argument).
std::vector<std::vector<std::size_t>> partition_greedily(std::span<const std::int64_t> sizes,
                                                         int world_size);

/// Every rank's parameters, whose values it has stepped, become everybody's: one broadcast a rank,
/// of all its arrays packed into one. `values`: of all parameters, in the order that `shares`
/// counts in; of the host, any types. Collective; throws Error.
void broadcast_shares(ProcessGroup& group, const std::vector<std::vector<std::size_t>>& shares,
                      std::span<const Buffer> values);

}  // namespace ddprun
