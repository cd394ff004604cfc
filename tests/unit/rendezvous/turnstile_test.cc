#include "rendezvous/net/turnstile.h"

#include <catch2/catch.hpp>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<Turnstile::Id>;

constexpr TimePoint kNow{1h};

TEST_CASE("Turnstile: as many as there is room for begin, the others in their order",
          "[turnstile]") {
  Turnstile turnstile(2, 200ms);
  CHECK(turnstile.enter(1, kNow));
  CHECK(turnstile.enter(2, kNow));
  CHECK_FALSE(turnstile.enter(3, kNow));
  CHECK_FALSE(turnstile.enter(4, kNow));
  CHECK(turnstile.admit(kNow).empty());
  turnstile.leave(2);
  CHECK_FALSE(turnstile.enter(5, kNow));  // No client jumps the line.
  CHECK(turnstile.admit(kNow) == Ids{3});
  turnstile.leave(1);
  turnstile.leave(3);
  CHECK(turnstile.admit(kNow) == Ids{4, 5});
  CHECK_FALSE(turnstile.deadline());
}

TEST_CASE("Turnstile: whoever leaves the line is not called", "[turnstile]") {
  Turnstile turnstile(1, 200ms);
  CHECK(turnstile.enter(1, kNow));
  CHECK_FALSE(turnstile.enter(2, kNow));
  CHECK_FALSE(turnstile.enter(3, kNow));
  turnstile.leave(2);
  turnstile.leave(1);
  CHECK(turnstile.admit(kNow) == Ids{3});
}

TEST_CASE("Turnstile: those who do not get on keep the others waiting only so long",
          "[turnstile]") {
  Turnstile turnstile(2, 200ms);
  CHECK(turnstile.enter(1, kNow));
  CHECK(turnstile.enter(2, kNow + 100ms));
  CHECK_FALSE(turnstile.enter(3, kNow + 100ms));
  CHECK_FALSE(turnstile.enter(4, kNow + 100ms));
  REQUIRE(turnstile.deadline() == kNow + 200ms);
  CHECK(turnstile.admit(kNow + 199ms).empty());
  CHECK(turnstile.admit(kNow + 200ms) == Ids{3});
  CHECK(turnstile.deadline() == kNow + 300ms);
  turnstile.leave(1);  // It was not counted any more.
  CHECK(turnstile.admit(kNow + 299ms).empty());
  CHECK(turnstile.admit(kNow + 300ms) == Ids{4});
}

TEST_CASE("Turnstile: ten thousand idlers delay the last of them by no more than their share",
          "[turnstile]") {
  Turnstile turnstile(1000, 200ms);
  TimePoint now = kNow;
  for (Turnstile::Id visitor = 1; visitor <= 10'000; ++visitor) (void)turnstile.enter(visitor, now);
  CHECK_FALSE(turnstile.enter(0, now));
  bool let_in = false;
  while (!let_in) {
    now = turnstile.deadline().value();
    for (const Turnstile::Id visitor : turnstile.admit(now)) let_in = let_in || visitor == 0;
  }
  CHECK(now - kNow == 2s);
}

}  // namespace
}  // namespace ddprun::rendezvous
