#pragma once
// A quick hash of memory, to compare the bits of ranks. Pure; not for adversaries. Used by
// agreement.cc, and by checkpoints, which keep its values on disk, so that the hash must not
// change.

#include <cstddef>
#include <cstdint>

namespace ddprun::worker_sdk {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed = 0) noexcept;

}  // namespace ddprun::worker_sdk
