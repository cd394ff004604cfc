#include "worker_sdk/elastic/save_interval.h"

#include <catch2/catch.hpp>

namespace ddprun::elastic {
namespace {

using std::chrono::milliseconds;

TEST_CASE("Save interval: a number of steps is kept, also by those who join in between") {
  SaveInterval interval(4);
  interval.step_took(milliseconds(1)), interval.save_took(milliseconds(500));
  CHECK(interval.proposal() == 4);
  CHECK(interval.next(0, 4) == 4);
  CHECK(interval.next(3, 0) == 4);
  CHECK(interval.next(4, 4) == 8);
}

TEST_CASE("Save interval: saves cost at most 0.5 % of the steps") {
  SaveInterval interval(0);
  CHECK(interval.proposal() == 0);
  CHECK(interval.next(7, 0) == 7 + SaveInterval::kFirst);
  for (int i = 0; i < 5; ++i) interval.step_took(milliseconds(100));
  interval.step_took(milliseconds(60'000));  // One that has waited for a new round.
  interval.save_took(milliseconds(900));     // One on a busy machine.
  interval.save_took(milliseconds(50));
  CHECK(interval.proposal() == 100);
  CHECK(interval.next(20, 100) == 120);
}

TEST_CASE("Save interval: a round saves sooner than the interval, for it may be short") {
  CHECK(SaveInterval(0).first(100, 8000) == 900);
  CHECK(SaveInterval(0).first(100, 50) == 110);
  CHECK(SaveInterval(0).first(100, 3) == 103);
  CHECK(SaveInterval(0).first(100, 0) == 110);
  CHECK(SaveInterval(7).first(100, 7) == 105);
}

TEST_CASE("Save interval: it is at least one step, and has a limit") {
  SaveInterval cheap(0), dear(0);
  cheap.step_took(milliseconds(60'000)), cheap.save_took(milliseconds(1));
  CHECK(cheap.proposal() == 1);
  dear.step_took(milliseconds(0)), dear.save_took(milliseconds(60'000));
  CHECK(dear.proposal() == SaveInterval::kMost);
}

}  // namespace
}  // namespace ddprun::elastic
