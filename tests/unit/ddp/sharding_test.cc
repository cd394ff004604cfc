// The partition of ZeRO-1 against PyTorch's ZeroRedundancyOptimizer (tests/golden/training.txt),
// and the broadcast of what each rank has stepped.

#include <catch2/catch.hpp>
#include <iterator>
#include <sstream>

#include "tests/support/golden.h"
#include "tests/support/worlds.h"

namespace ddprun {

TEST_CASE("Sharding: parameters are dealt out as PyTorch's ZeroRedundancyOptimizer does") {
  const auto lines = test::training_lines("partition");
  REQUIRE(lines.size() == 200);
  for (const auto& line : lines) {
    INFO(line.text);
    const auto shares =
        partition_greedily(line.numbers<std::int64_t>(0), std::stoi(line.words.at(0)));
    std::string text;
    for (const auto& share : shares) {
      if (!text.empty()) text += " ;";
      for (const std::size_t i : share) text += " " + std::to_string(i);
    }
    std::string want = line.parts.at(1);
    while (!want.empty() && want.back() == ' ') want.pop_back();
    std::istringstream got_words(text), want_words(want);
    const std::vector<std::string> got{std::istream_iterator<std::string>(got_words), {}};
    const std::vector<std::string> expected{std::istream_iterator<std::string>(want_words), {}};
    CHECK(got == expected);
  }
}

TEST_CASE("Sharding: what each rank stepped becomes everybody's, on every backend") {
  const std::vector<std::int64_t> sizes{5, 0, 700, 31, 2, 8, 8};
  for (const test::World& world : test::worlds()) {
    INFO(world.name());
    test::FirstComplaint complaints;
    const auto errors = world.ranks().run([&](ProcessGroup& group) {
      const auto shares = partition_greedily(sizes, group.world_size());
      std::vector<std::vector<std::byte>> memory;
      std::vector<Buffer> values;
      for (std::size_t i = 0; i < sizes.size(); ++i) {  // Every second one in halves.
        const DataType type = i % 2 == 0 ? DataType::f32 : DataType::bf16;
        memory.emplace_back(static_cast<std::size_t>(sizes[i]) * size_of(type));
        values.push_back({memory.back().data(), static_cast<std::size_t>(sizes[i]), type});
      }
      for (const std::size_t i : shares[static_cast<std::size_t>(group.rank())]) {
        std::fill(memory[i].begin(), memory[i].end(), static_cast<std::byte>(i + 1));
      }
      broadcast_shares(group, shares, values);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        for (const std::byte b : memory[i]) {
          if (b != static_cast<std::byte>(i + 1)) complaints.add("array " + std::to_string(i));
        }
      }
    });
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("Sharding: shares that cannot be are refused before anything is sent") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(partition_greedily({}, 0), Contains("world_size is 0"));
  const auto errors = test::Ranks{.world_size = 2}.run(
      [](ProcessGroup& group) { broadcast_shares(group, {{0}}, {}); });
  REQUIRE(errors[0]);
  CHECK_THAT(errors[0]->what(), Contains("1 shares for 2 ranks"));
  const auto others = test::Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    broadcast_shares(group, {{0}, {}}, {});
  });
  REQUIRE(others[1]);
  CHECK_THAT(others[1]->what(), Contains("there is no parameter 0"));
}

}  // namespace ddprun
