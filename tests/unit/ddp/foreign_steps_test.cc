// Steps of a loop that another library synchronises: what they leave for `ddprun --report`, and
// that their exchange delays no rank.

#include "worker_sdk/timer/timer_shell.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using test::outcome;
using test::Ranks;
using worker_sdk::ForeignSteps;
using Phase = ForeignSteps::Phase;

// Ranks as threads, each with a loop of its own; what rank 0 leaves behind.
template <class Body>
nlohmann::json summary_of(const Body& body) {
  const test::TemporaryDirectory directory;
  ::setenv("DDPRUN_REPORT_DIR", (directory / "").c_str(), 1);
  const Ranks ranks{.world_size = 2};
  const auto errors = ranks.run([&](ProcessGroup& group) {
    ForeignSteps steps("");
    steps.join(ranks.options(directory / "times", group.rank()));
    body(group, steps);
  });
  ::unsetenv("DDPRUN_REPORT_DIR");
  CHECK(outcome(errors) == "all well");
  std::ifstream file(directory / "rank0.json");
  return nlohmann::json::parse(file);
}

void one_step(ProcessGroup& group, ForeignSteps& steps, Phase slow, int late_rank) {
  for (const Phase phase : {Phase::kData, Phase::kForward, Phase::kBackward}) {
    steps.enter(phase);
    if (phase == slow && group.rank() == late_rank) ::poll(nullptr, 0, 60);
  }
  steps.enter(Phase::kExposed);
  group.barrier();
  steps.enter(Phase::kOutside);
  steps.end_step(1000);
  steps.enter(Phase::kOptimizer);
}

TEST_CASE("Foreign steps: the rank that the others waited for is named with its phase") {
  for (const Phase slow : {Phase::kData, Phase::kBackward}) {
    const auto summary = summary_of([&](ProcessGroup& group, ForeignSteps& steps) {
      for (int i = 0; i < 16; ++i) one_step(group, steps, slow, 1);
    });
    CHECK(summary.at("steps") == 16);
    CHECK(summary.at("window_steps") == 16);
    CHECK(summary.at("waiting_s").get<double>() > 0.3);
    REQUIRE(summary.at("late").size() >= 1);
    CHECK(summary.at("late")[0].at("rank") == 1);
    CHECK(summary.at("late")[0].at("phase") == (slow == Phase::kData ? "data" : "backward"));
  }
}

TEST_CASE("Foreign steps: a rank that takes fewer steps holds nobody up") {
  std::promise<void> first_is_through;
  const auto summary = summary_of([&](ProcessGroup& group, ForeignSteps& steps) {
    for (int i = 0; i < 4; ++i) one_step(group, steps, Phase::kData, -1);
    if (group.rank() == 1) {  // Well before the exchange that rank 0 has begun gives up.
      const auto met = first_is_through.get_future().wait_for(Ranks{}.op_timeout / 3);
      if (met == std::future_status::ready) return;
      throw Error(ErrorKind::timed_out, {.rank = 0, .operation = "end_step"}, "is held up");
    }
    for (int i = 0; i < 100; ++i) {  // More than two windows.
      steps.enter(Phase::kBackward);
      steps.end_step(1000);
    }
    first_is_through.set_value();
  });
  CHECK(summary.at("steps") == 104);
  CHECK(summary.at("window_steps") == 0);
}

TEST_CASE("Foreign steps: without others and without a page there is nothing to do") {
  ForeignSteps steps("");
  steps.enter(Phase::kData);
  steps.enter(Phase::kExposed);
  steps.end_step(0);
}

}  // namespace
}  // namespace ddprun
