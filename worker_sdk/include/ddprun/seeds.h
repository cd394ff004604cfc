#pragma once
// Seeds for random numbers: different ones on each rank (augmentation, dropout), or the same one on
// all (initialisation, sampling).

#include <cstdint>

#include "ddprun/process_group.h"

namespace ddprun {

/// seed + rank, as in torch.manual_seed(seed + rank). With epochs, no two ranks and epochs share a
/// seed: seed + epoch * world_size + rank.
constexpr std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept {
  return seed + static_cast<std::uint64_t>(rank);
}
constexpr std::uint64_t rank_seed(std::uint64_t seed, int rank, int world_size,
                                  std::int64_t epoch) noexcept {
  return seed + static_cast<std::uint64_t>(epoch) * static_cast<std::uint64_t>(world_size) +
         static_cast<std::uint64_t>(rank);
}

/// A seed that rank 0 drew from the system's entropy, the same on all ranks. Collective.
std::uint64_t shared_seed(ProcessGroup& group);

}  // namespace ddprun
