#pragma once
// ZeRO stage 1, the framework-neutral part: each rank keeps the optimizer state of its share of the
// parameters, steps that share and broadcasts it. For libtorch there is
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

/// The indices of each rank's parameters. Assigns parameters by decreasing size, each to the rank
/// with the fewest elements so far, as PyTorch's ZeroRedundancyOptimizer does. Communicates
/// nothing; the result is the same on all ranks. Throws Error(bad_argument).
std::vector<std::vector<std::size_t>> partition_greedily(std::span<const std::int64_t> sizes,
                                                         int world_size);

/// Broadcasts the parameters that each rank has stepped: one broadcast per rank, of all its arrays
/// packed into one. `values`: all parameters, in the order of the indices in `shares`, in host
/// memory, of any type. Collective; throws Error.
void broadcast_shares(ProcessGroup& group, const std::vector<std::vector<std::size_t>>& shares,
                      std::span<const Buffer> values);

}  // namespace ddprun
