#include "agent/process/chaos.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/support/loop.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST_CASE("Chaos: waits are as long on average as was asked for, and vary", "[chaos]") {
  ChaosDice dice({.mean = 10s, .seed = 1});
  constexpr int kWaits = 20'000;
  Duration sum{}, shortest = 1h, longest{};
  for (int i = 0; i < kWaits; ++i) {
    const Duration wait = dice.wait();
    REQUIRE(wait >= Duration::zero());
    sum += wait;
    shortest = std::min(shortest, wait);
    longest = std::max(longest, wait);
  }
  CHECK(sum / kWaits > 9700ms);
  CHECK(sum / kWaits < 10300ms);
  CHECK(shortest < 100ms);
  CHECK(longest > 60s);
}

TEST_CASE("Chaos: a seed repeats what happened, another one does not", "[chaos]") {
  ChaosDice one({.mean = 1s, .seed = 42}), same({.mean = 1s, .seed = 42}),
      other({.mean = 1s, .seed = 43});
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    const Duration wait = one.wait();
    CHECK(wait == same.wait());
    equal += wait == other.wait() ? 1 : 0;
    CHECK(one.pick(8) == same.pick(8));
    other.pick(8);
  }
  CHECK(equal < 5);
}

TEST_CASE("Chaos: each worker is hit, nobody else, and nobody if there is none", "[chaos]") {
  boost::asio::io_context loop{1};
  Chaos chaos(loop, {.mean = 50us, .seed = 7});
  bool empty = true;
  int queries = 0;
  std::multiset<int> hit;
  chaos.candidates = [&] {
    ++queries;
    return empty ? std::vector<int>() : std::vector<int>{2, 3, 5};
  };
  chaos.on_kill = [&](int local_rank) { hit.insert(local_rank); };
  chaos.start();
  REQUIRE(test::run_until(loop, [&] { return queries >= 5; }));
  CHECK(hit.empty());
  empty = false;
  REQUIRE(test::run_until(loop, [&] { return hit.size() >= 100; }));
  CHECK(hit.count(2) + hit.count(3) + hit.count(5) == hit.size());
  for (const int local_rank : {2, 3, 5}) CHECK(hit.count(local_rank) > 10);
  chaos.stop();
  loop.restart();
  loop.run();  // Ends: nothing is waited for.
}

}  // namespace
}  // namespace ddprun::agent
