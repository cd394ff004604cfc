#pragma once
// Random numbers that depend on a seed, a step and a shard only, not on the rank that draws them or
// on what was drawn before: Philox4x32-10 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel
// Random Numbers: As Easy as 1, 2, 3" (SC 2011).
//
//   ddprun::RandomStream random(seed, step, shard);
//   if (random.uniform() < 0.5f) flip(image);
//   at::manual_seed(ddprun::stream_seed(seed, step, shard, shards));   // For dropout.

#include "ddprun/cxx20.h"

#include <array>
#include <cstdint>

namespace ddprun {

/// The block function: 128 random bits for each counter, under a key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// A stream of 2^34 numbers of 32 bits for each (seed, step, shard). A
/// std::uniform_random_bit_generator. Not thread-safe; cheap to make and to copy.
class RandomStream {
 public:
  using result_type = std::uint32_t;

  /// For a stream per sample, for augmentation, pass the epoch as `step` and the sample's index as
  /// `shard`.
  explicit RandomStream(std::uint64_t seed, std::uint64_t step = 0,
                        std::uint32_t shard = 0) noexcept
      : seed_(seed), step_(step), shard_(shard) {}

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return ~result_type{0}; }
  result_type operator()() noexcept;

  /// In [0, 1), a multiple of 2^-24. The same on every platform, unlike standard distributions.
  float uniform() noexcept { return static_cast<float>((*this)() >> 8) * 0x1p-24f; }

 private:
  std::uint64_t seed_;
  std::uint64_t step_;
  std::uint32_t shard_;
  std::uint32_t next_block_ = 0;
  std::uint32_t used_ = 4;  // Of block_.
  std::array<std::uint32_t, 4> block_{};
};

/// A seed for another generator. PyTorch's CPU generator takes the low 32 bits only: these differ
/// for all (step, shard) of one `seed` and one number of shards, up to 2^32 of them.
std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t step, std::uint32_t shard,
                          std::uint32_t shards) noexcept;

}  // namespace ddprun
