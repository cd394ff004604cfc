// The fuzz target's body with seeded bytes, so that it runs in every build.

#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/fuzz/reducer_fuzz.h"

TEST_CASE("Reducer: whatever is called in whatever order, no promise is broken", "[fuzz]") {
  std::mt19937 random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::uint8_t> bytes(3 + random() % 120);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    // Long runs of marks, so that passes come to their end, too.
    if (round % 2 == 0) {
      for (std::size_t i = 20; i < bytes.size(); ++i) {
        if (i % 24 != 0) bytes[i] = static_cast<std::uint8_t>(64 + random() % 192);
      }
    }
    ddprun::fuzz::fuzz_reducer(bytes.data(), bytes.size());
  }
}
