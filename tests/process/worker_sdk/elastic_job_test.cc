// Workers of a job die and are replaced, at every point that a job passes: what comes out is what a
// quiet run gives, and every sample is in exactly one committed step.

#include <algorithm>

#include "tests/process/worker_sdk/elastic_run.h"

namespace ddprun::test {
namespace {

const std::vector<std::string> kBackends = {"shm", "gloo", "cpu"};

TEST_CASE("Elastic job: in a quiet run nothing changes") {
  for (const std::string& backend : kBackends) check({.backend = backend}, 0);
}

TEST_CASE("Elastic job: the others go on where one dies, whatever it did") {
  for (const std::string& backend : kBackends) {
    for (const char* point : {"body:3", "reduced:3", "commit:3", "apply:3", "committed:3",
                              "between:1", "joined:1", "settled:1", "seated:1"}) {
      for (const int slot : {0, 2}) {
        if (slot != 0 && backend != kBackends[0]) continue;  // Each takes a while.
        INFO(point << " in slot " << slot);
        check({.backend = backend, .deaths = {{{slot, 0}, point}}}, 1);
      }
    }
  }
}

TEST_CASE("Elastic job: a replacement receives the state, and no step is repeated for it") {
  for (const std::string& backend : kBackends) {
    for (const char* vote : {"own", "carried"}) {
      const Run run{.backend = backend,
                    .replacements = 1,
                    .lives = 1,
                    .deaths = {{{1, 0}, "reduced:3"}},
                    .variables = {{"VOTE", vote}}};
      check(run, 1);
    }
  }
}

TEST_CASE("Elastic job: a checkpoint resumes on another number of ranks") {
  const TemporaryDirectory folder;
  const std::string file = folder / "checkpoint";
  for (const std::string& backend : kBackends) {
    check({.backend = backend, .slots = 3, .steps = 8, .variables = {{"SAVE", file}}}, 0);
    for (const int slots : {1, 2, 5}) {
      check({.backend = backend,
             .slots = slots,
             .steps = 12,
             .variables = {{"CHECKPOINT", file}, {"RESUME", "8"}}},
            0);
    }
  }
}

TEST_CASE("Elastic job: several die at once, all but one, or all") {
  using Deaths = std::map<std::pair<int, int>, std::string>;
  const std::string point = "reduced:3";
  const std::vector<Deaths> all = {
      {{{0, 0}, point}, {{1, 0}, point}},
      {{{0, 0}, point}, {{1, 0}, "body:3"}, {{3, 0}, "apply:2"}},
      {{{0, 0}, point}, {{1, 0}, point}, {{2, 0}, point}, {{3, 0}, point}},
  };
  for (const std::string& backend : kBackends) {
    for (const Deaths& deaths : all) {
      const auto n = static_cast<int>(deaths.size());
      check({.backend = backend, .replacements = n, .lives = n, .deaths = deaths}, n);
    }
  }
}

// A copy is safe when all agree on the next one, two steps later.
TEST_CASE("Elastic job: all die at once, and the memory folder has the state") {
  const std::map<std::string, std::int64_t> points = {
      {"body:8", 4}, {"committed:7", 4}, {"saving:3", 2}, {"saved:3", 4}};
  for (const std::string& backend : kBackends) {
    for (const auto& [point, safe] : points) {
      Run run{
          .backend = backend, .replacements = 4, .lives = 4, .variables = {{"MEMORY_EVERY", "2"}}};
      for (int slot = 0; slot < run.slots; ++slot) run.deaths[{slot, 0}] = point;
      const Outcome outcome(run);
      INFO(point << "\n" << outcome.host.trace());
      CHECK(outcome.problem == "");
      CHECK(outcome.host.deaths() == run.slots);
      const auto steps = outcome.began();
      REQUIRE(steps.size() == 8);
      const auto is_later = [safe = safe](std::int64_t step) { return step >= safe; };
      CHECK(std::count(steps.begin(), steps.end(), 0) == 4);
      CHECK(std::count_if(steps.begin(), steps.end(), is_later) == 4);
    }
  }
}

// 5 MiB: two pieces. Rank 0 sends its state to all before the first step.
TEST_CASE("Elastic job: a source or a receiver of state dies while it is sent") {
  using Deaths = std::map<std::pair<int, int>, std::string>;
  const std::pair<int, int> first{0, 0}, second{1, 0}, replacement{1, 1};
  const std::vector<Deaths> all = {
      {{first, "send:2"}},
      {{second, "receive:2"}},
      {{second, "received:1"}},
      {{second, "reduced:2"}, {first, "send:3"}},
      {{second, "reduced:2"}, {replacement, "receive:2"}},
      {{second, "reduced:2"}, {replacement, "received:1"}, {first, "send:4"}},
  };
  for (const std::string& backend : kBackends) {
    for (const Deaths& deaths : all) {
      const auto n = static_cast<int>(deaths.size());
      check({.backend = backend,
             .slots = 3,
             .replacements = n,
             .lives = n,
             .steps = 4,
             .weights = 700'000,
             .deaths = deaths},
            n);
    }
  }
}

TEST_CASE("Elastic job: a slow rank's shards stay with the others when a rank is replaced") {
  for (const std::string& backend : kBackends) {
    check({.backend = backend,
           .replacements = 2,
           .lives = 2,
           .steps = 60,
           .deaths = {{{0, 0}, "reduced:25"}, {{2, 0}, "body:45"}},
           .variables = {{"SLOW", "3"}}},
          2);
  }
}

TEST_CASE("Elastic job: a body that swallows the error does not commit") {
  for (const std::string& backend : kBackends) {
    check({.backend = backend,
           .deaths = {{{1, 0}, "body:3"}},
           .variables = {{"SWALLOW", "yes"}, {"VOTE", "carried"}}},
          1);
  }
}

TEST_CASE("Elastic job: who fails within its commit takes the state of another") {
  for (const std::string& backend : kBackends) {
    const Run run{
        .backend = backend, .deaths = {{{2, 0}, "apply:3"}}, .variables = {{"TEAR", "1"}}};
    check(run, 1);
  }
}

TEST_CASE("Elastic job: workers die at random points, and so do their replacements") {
  const std::vector<std::string> points = {"seated",    "joined",  "settled", "send",   "receive",
                                           "received",  "body",    "reduced", "commit", "apply",
                                           "committed", "between", "saving",  "saved",  "restored"};
  for (unsigned seed = 1; seed <= seeds(); ++seed) {
    const Run run = with_random_deaths({}, seed, kBackends, points);
    INFO("seed " << seed);
    const Outcome outcome(run);
    INFO(run.backend << "\n" << outcome.host.trace());
    CHECK(outcome.problem == "");
    CHECK(outcome.host.repeated_planned() == 0);
  }
}

}  // namespace
}  // namespace ddprun::test
