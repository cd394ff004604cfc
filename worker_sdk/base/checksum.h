#pragma once
// A quick hash of memory, to see whether ranks hold the same bits. Pure; not for adversaries. Used
// by agreement.cc and, where its values are kept on disk and so must stay what they are, by
// checkpoints.

#include <cstddef>
#include <cstdint>

namespace ddprun::worker_sdk {

inline constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed = 0) noexcept;

}  // namespace ddprun::worker_sdk
