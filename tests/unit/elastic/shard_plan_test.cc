// Which rank has which shards, which keeps their copies, and what moves between two rounds.

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "worker_sdk/job/shard_plan.h"

namespace ddprun::elastic {
namespace {

// "aab": ranks 0 and 1 are on host a, node 0 each.
std::vector<ShardPlace> places(const std::string& hosts) {
  std::vector<ShardPlace> result;
  for (const char host : hosts) result.push_back({.host = std::string(1, host)});
  return result;
}
// All on one host.
std::vector<ShardPlace> nodes(const std::vector<int>& numbers) {
  std::vector<ShardPlace> result;
  for (const int node : numbers) result.push_back({.host = "a", .node = node});
  return result;
}

using Ranks = std::vector<int>;

TEST_CASE("Shards: a copy is with the next rank where all are on one node") {
  CHECK(keepers_of(places("a")) == Ranks{-1});
  CHECK(keepers_of(places("aa")) == Ranks{1, 0});
  CHECK(keepers_of(places("aaa")) == Ranks{1, 2, 0});
}

TEST_CASE("Shards: a copy is on another host, and nobody keeps more than it has to") {
  CHECK(keepers_of(places("ab")) == Ranks{1, 0});
  CHECK(keepers_of(places("aabb")) == Ranks{2, 3, 0, 1});
  CHECK(keepers_of(places("abab")) == Ranks{1, 0, 3, 2});
  CHECK(keepers_of(places("aabbc")) == Ranks{2, 3, 4, 0, 1});
  CHECK(keepers_of(places("aaab")) == Ranks{3, 3, 3, 0});
  CHECK(keepers_of(nodes({0, 0, 1, 1})) == Ranks{2, 3, 0, 1});
}

TEST_CASE("Shards: for any hosts a copy is elsewhere, and copies are shared out evenly") {
  for (int pattern = 0; pattern < 3 * 3 * 3 * 3 * 3 * 3; ++pattern) {
    std::string hosts;
    for (int i = 0, rest = pattern; i < 6; ++i, rest /= 3) {
      hosts += static_cast<char>('a' + rest % 3);
    }
    INFO(hosts);
    const auto keepers = keepers_of(places(hosts));
    const bool is_one_host = hosts.find_first_not_of(hosts[0]) == std::string::npos;
    long most_of_host = 0;
    for (const char host : {'a', 'b', 'c'}) {
      most_of_host = std::max(most_of_host, std::count(hosts.begin(), hosts.end(), host));
    }
    for (int rank = 0; rank < 6; ++rank) {
      const int keeper = keepers[static_cast<std::size_t>(rank)];
      CHECK(keeper != rank);
      if (!is_one_host)
        CHECK(hosts[static_cast<std::size_t>(keeper)] != hosts[static_cast<std::size_t>(rank)]);
      const auto wards = std::count(keepers.begin(), keepers.end(), rank);
      if (is_one_host || 2 * most_of_host <= 6) CHECK(wards == 1);
      CHECK(wards <= 5);
    }
  }
}

TEST_CASE("Shards: each rank has a range of them, and all are wanted twice") {
  const ShardLayout layout(places("aabb"), 10, true);
  CHECK(layout.owned_by(0) == ShardRange{0, 3});
  CHECK(layout.owned_by(3) == ShardRange{8, 10});
  CHECK(layout.wards_of(2) == Ranks{0});
  const Wanted wanted = layout.wanted();
  CHECK(wanted.front() == Ranks{0, 2});
  CHECK(wanted.back() == Ranks{3, 1});
  const ShardLayout plain(places("aabb"), 10, false);
  CHECK(plain.wanted().front() == Ranks{0});
  CHECK(plain.wards_of(2).empty());
  CHECK_FALSE(ShardLayout().is_known());
}

TEST_CASE("Shards: before nodes go, each node has all, unless there are two only") {
  CHECK(ShardLayout(places("aabb"), 3, true).spread() == Wanted(3));
  const Wanted more = ShardLayout(places("abc"), 3, true).spread();
  CHECK(more == Wanted{{2}, {0}, {1}});
  const Wanted on_one_host = ShardLayout(nodes({0, 1, 2}), 3, true).spread();
  CHECK(on_one_host == Wanted{{2}, {0}, {1}});
}

TEST_CASE("Shards: the lost ones are named with the ranks that had them") {
  const ShardLayout layout(places("aabb"), 10, true);
  CHECK(layout.describe({0, 1, 2}) ==
        "shards 0 to 2, which rank 0 on a had, and rank 2 on b a copy of");
  CHECK(
      layout.describe({1, 9}) ==
      "shard 1, which rank 0 on a had, and rank 2 on b a copy of; shard 9, which rank 3 on b had, "
      "and rank 1 on a a copy of");
  CHECK(ShardLayout(places("a"), 2, true).describe({1}) == "shard 1, which rank 0 on a had");
}

constexpr Hold kNo = Hold::kNothing, kFills = Hold::kFills, kHas = Hold::kHas;

TEST_CASE("Shards: at first the one whose it is fills a shard, and gives it to the others") {
  const auto plan = plan_moves({{kFills, kFills}, {kFills, kFills}}, {{0, 1}, {1, 0}});
  CHECK(plan.fills == std::vector<ShardFill>{{0, 0}, {1, 1}});
  CHECK(plan.moves == std::vector<ShardMove>{{0, 0, 1}, {1, 1, 0}});
  CHECK(plan.lost.empty());
}

TEST_CASE("Shards: who has one keeps it, and those that have it take turns to give") {
  const auto plan = plan_moves({{kHas, kHas}, {kHas, kHas}, {kFills, kNo}}, {{2, 0}, {2, 1}});
  CHECK(plan.fills.empty());
  CHECK(plan.moves == std::vector<ShardMove>{{0, 0, 2}, {1, 1, 2}});
}

TEST_CASE("Shards: a damaged one is replaced by a sound one, and is lost where there is none") {
  const auto plan = plan_moves({{Hold::kDamaged}, {kHas}, {kNo}}, {{0, 2}});
  CHECK(plan.moves == std::vector<ShardMove>{{0, 1, 0}, {0, 1, 2}});
  CHECK(plan_moves({{Hold::kDamaged}, {kNo}}, {{0, 1}}).lost == Ranks{0});
  CHECK(shards_text({4, 5, 6, 9, 11, 12}) == "shards 4 to 6, shard 9, shards 11 to 12");
}

TEST_CASE("Shards: one that nobody has or fills is lost, unless nobody wants it") {
  CHECK(plan_moves({{kNo, kHas}, {kNo, kHas}}, {{0, 1}, {1, 0}}).lost == Ranks{0});
  CHECK(plan_moves({{kNo}, {kNo}}, {{}}).lost.empty());
  const auto plan = plan_moves({{kNo}, {kFills}}, {{0}});
  CHECK(plan.fills == std::vector<ShardFill>{{0, 1}});
  CHECK(plan.moves == std::vector<ShardMove>{{0, 1, 0}});
}

}  // namespace
}  // namespace ddprun::elastic
