#include "ddprun/elastic/random_stream.h"

#include "worker_sdk/elastic/mix.h"

namespace ddprun {
namespace {

constexpr int kPhiloxRounds = 10;
// The constants of the paper's Philox4x32.
constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

RandomStream::result_type RandomStream::operator()() noexcept {
  if (used_ == block_.size()) {
    block_ =
        philox4x32({next_block_++, shard_, low(step_), high(step_)}, {low(seed_), high(seed_)});
    used_ = 0;
  }
  return block_[used_++];
}

std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t step, std::uint32_t shard,
                          std::uint32_t shards) noexcept {
  const std::uint64_t number = step * shards + shard;
  const std::uint64_t offset = worker_sdk::mix64(seed);
  return worker_sdk::mix64(offset ^ number) << 32 | worker_sdk::mix32(low(offset + number));
}

}  // namespace ddprun
