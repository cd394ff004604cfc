#pragma once
// Seeds for random numbers: a different seed on each rank (augmentation, dropout), or the same seed
// on all ranks (initialisation, sampling).

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

/// A seed from the system's entropy on rank 0, the same on all ranks. Collective.
std::uint64_t shared_seed(ProcessGroup& group);

}  // namespace ddprun
