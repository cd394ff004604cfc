#pragma once
// A quick hash of memory, to compare the bits of ranks, or to check that bytes have arrived as they
// were sent. Pure; not for adversaries. Checkpoints keep its values on disk, and memory servers of
// different versions compare them, so that the hash must not change.

#include <cstddef>
#include <cstdint>

namespace ddprun {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed = 0) noexcept;

}  // namespace ddprun
