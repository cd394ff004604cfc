#include "agent/ledger/node_ledger.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

worker_link::Resumed resumed(std::int64_t step, std::int64_t repeated, std::int64_t lost_us) {
  worker_link::Resumed resumed;
  resumed.step = step;
  resumed.repeated = repeated;
  resumed.lost_us = lost_us;
  return resumed;
}

TEST_CASE("Change cost: one line for all workers of the node, of the worst of each", "[change]") {
  ChangeCost cost({0, 2});
  CHECK(!cost.resumed(0, resumed(7, 1, 900'000), 4));
  CHECK(!cost.resumed(0, resumed(9, 9, 9'000'000), 4));  // It has reported already.
  CHECK(!cost.resumed(1, resumed(9, 9, 9'000'000), 4));  // It had no seat when the round began.
  CHECK(cost.resumed(2, resumed(6, 3, 40'000), 4) ==
        "2 of 4 workers continue at step 7 after 900 ms; 3 steps run again");
}

TEST_CASE("Change cost: what is all, single or nothing is not said", "[change]") {
  CHECK(ChangeCost({0}).resumed(0, resumed(5, 0, 1'500'000), 1) ==
        "1 worker continues at step 5 after 1.5 s");
  CHECK(ChangeCost({0}).resumed(0, resumed(5, 1, 999'999), 1) ==
        "1 worker continues at step 5 after 999 ms; 1 step runs again");
}

TEST_CASE("Change cost: where no worker had the state, what is lost is said", "[change]") {
  ChangeCost from_nothing({0, 1}, /*lost_steps=*/97);
  CHECK(!from_nothing.resumed(1, resumed(0, 0, 20), 2));
  CHECK(from_nothing.resumed(0, resumed(0, 0, 20), 2) ==
        "no worker had the state of 97 steps: the job begins again at step 0, 97 steps are lost");
  CHECK(from_nothing.loses_steps());
  ChangeCost from_checkpoint({0}, 97);
  CHECK(from_checkpoint.resumed(0, resumed(96, 0, 20), 1) ==
        "no worker had the state of 97 steps: the job begins again at step 96, 1 step is lost");
  ChangeCost from_newest({0}, 97);
  CHECK(from_newest.resumed(0, resumed(97, 0, 20), 1) ==
        "no worker had the state of 97 steps: the job begins again at step 97, no step is lost");
  CHECK_FALSE(from_newest.loses_steps());
}

}  // namespace
}  // namespace ddprun::agent
