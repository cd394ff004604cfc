#include "ddprun/elastic/random_stream.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace ddprun {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Those that the authors publish with their library (Random123's kat_vectors, philox4x32, 10
// rounds).
TEST_CASE("Random stream: Philox gives the published numbers", "[elastic]") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

std::vector<std::uint32_t> first(RandomStream stream, int count = 6) {
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(stream());
  return numbers;
}

TEST_CASE("Random stream: it depends on seed, step and shard, and on nothing else", "[elastic]") {
  CHECK(first(RandomStream(7, 3, 2)) == first(RandomStream(7, 3, 2)));
  std::set<std::vector<std::uint32_t>> streams;
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 40}) {
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 40}) {
      for (const std::uint32_t shard : {0U, 1U, ~0U}) {
        streams.insert(first(RandomStream(seed, step, shard)));
      }
    }
  }
  CHECK(streams.size() == 27);
}

TEST_CASE("Random stream: numbers are spread evenly, and standard algorithms take it",
          "[elastic]") {
  static_assert(std::uniform_random_bit_generator<RandomStream>);
  RandomStream stream(11, 5, 3);
  std::array<int, 64> counts{};
  constexpr int kDraws = 64'000;
  for (int i = 0; i < kDraws; ++i) {
    const float x = stream.uniform();
    REQUIRE((x >= 0 && x < 1));
    ++counts[static_cast<std::size_t>(x * 64)];
  }
  double chi_squared = 0;
  for (const int count : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  CHECK(chi_squared < 110);  // 63 degrees of freedom: more in one of 4,000 cases.

  std::vector<int> cards(52);
  std::iota(cards.begin(), cards.end(), 0);
  std::shuffle(cards.begin(), cards.end(), stream);
  CHECK_FALSE(std::is_sorted(cards.begin(), cards.end()));
}

// PyTorch's CPU generator forgets the high half.
TEST_CASE("Random stream: seeds for other generators differ in their low half", "[elastic]") {
  for (const std::uint64_t seed : {0ULL, 42ULL, ~0ULL}) {
    std::set<std::uint32_t> low;
    for (std::uint64_t step = 0; step < 1000; ++step) {
      for (std::uint32_t shard = 0; shard < 64; ++shard) {
        low.insert(static_cast<std::uint32_t>(stream_seed(seed, step, shard, 64)));
      }
    }
    CHECK(low.size() == 64'000);
  }
  CHECK(stream_seed(1, 5, 2, 8) != stream_seed(2, 5, 2, 8));
}

}  // namespace
}  // namespace ddprun
