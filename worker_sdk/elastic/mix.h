#pragma once
// Bijections that spread every bit of their argument over the result: the finalizers of A.
// Appleby's MurmurHash3. Pure.

#include <cstdint>

namespace ddprun::worker_sdk {

constexpr std::uint32_t mix32(std::uint32_t x) noexcept {
  x = (x ^ x >> 16) * 0x85EBCA6B;
  x = (x ^ x >> 13) * 0xC2B2AE35;
  return x ^ x >> 16;
}

constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53;
  return x ^ x >> 33;
}

}  // namespace ddprun::worker_sdk
