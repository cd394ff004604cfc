#include "common/checksum.h"

#include <bit>
#include <cstring>

namespace ddprun {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
constexpr std::size_t kLanes = 4;  // Independent multiplications, so that memory is the limit.

std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
  return std::rotl(state ^ word, 29) * kOdd;
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed) noexcept {
  const auto* in = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[kLanes] = {seed + 1, seed + 2, seed + 3, seed + 4};
  constexpr std::size_t kBlock = kLanes * sizeof(std::uint64_t);
  std::size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, in += kBlock) {
    std::uint64_t words[kLanes];
    std::memcpy(words, in, kBlock);
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] = mix(lanes[k], words[k]);
  }
  std::uint64_t hash = mix(seed, bytes);
  for (const std::uint64_t lane : lanes) hash = mix(hash, lane);
  for (; left > 0; --left, ++in) hash = mix(hash, *in);
  return hash ^ hash >> 32;
}

}  // namespace ddprun
