// Workers of a job with sharded state die: what comes out is what a quiet run gives, and state is
// lost only with the rank that had it and the one that kept its copy.

#include "tests/process/worker_sdk/elastic_run.h"

namespace ddprun::test {
namespace {

const std::vector<std::string> kBackends = {"shm", "gloo", "cpu"};

TEST_CASE("Sharded job: the same bits for any number of ranks") {
  for (const std::string& backend : kBackends) {
    for (const int slots : {1, 2, 3, 5}) {
      check({.backend = backend, .slots = slots, .is_sharded = true}, 0);
    }
  }
}

TEST_CASE("Sharded job: the others go on where one dies, whatever it did") {
  for (const std::string& backend : kBackends) {
    for (const char* point :
         {"body:3", "reduced:3", "refresh:3", "exchanged:3", "refreshed:3", "commit:3", "apply:3",
          "committed:3", "between:1", "shards:1", "staged:1", "installed:1"}) {
      for (const int slot : {0, 2}) {
        if (slot != 0 && backend != kBackends[0]) continue;  // Each takes a while.
        INFO(point << " in slot " << slot);
        check({.backend = backend, .deaths = {{{slot, 0}, point}}, .is_sharded = true}, 1);
      }
    }
  }
}

TEST_CASE("Sharded job: a replacement gets its part, and no step is repeated for it") {
  for (const std::string& backend : kBackends) {
    for (const char* vote : {"own", "carried"}) {
      const Run run{.backend = backend,
                    .replacements = 1,
                    .lives = 1,
                    .deaths = {{{1, 0}, "refreshed:3"}},
                    .variables = {{"VOTE", vote}},
                    .is_sharded = true};
      check(run, 1);
    }
  }
}

// Rank 1 has not made its copies when the others have; and its own are with the rank that dies.
TEST_CASE("Sharded job: a step is not committed before all copies of it are made") {
  for (const std::string& backend : kBackends) {
    const int keeper = backend == "cpu" ? 3 : 2;
    const Run run{.backend = backend,
                  .deaths = {{{1, 0}, "exchanged:3:throw"}, {{keeper, 0}, "refreshed:3"}},
                  .variables = {{"VOTE", "carried"}},
                  .is_sharded = true};
    check(run, 1);
  }
}

TEST_CASE("Sharded job: ranks die one after the other until one is left") {
  for (const std::string& backend : kBackends) {
    const Run run{.backend = backend,
                  .slots = 5,
                  .steps = 24,
                  .deaths = {{{1, 0}, "commit:3"},
                             {{0, 0}, "apply:6"},
                             {{4, 0}, "refresh:10"},
                             {{2, 0}, "committed:14"}},
                  .is_sharded = true};
    const Outcome outcome(run);
    INFO(backend << "\n" << outcome.host.trace());
    CHECK(outcome.problem == "");
    CHECK(outcome.lost == "");
    CHECK(outcome.host.deaths() == 4);
  }
}

TEST_CASE("Sharded job: who fails within its commit has its part all the same") {
  for (const std::string& backend : kBackends) {
    const Run run{.backend = backend,
                  .deaths = {{{2, 0}, "apply:3"}},
                  .variables = {{"TEAR", "1"}},
                  .is_sharded = true};
    check(run, 1);
  }
}

// 5 MB: more than one piece. Of 4 ranks the copy of rank 1 is with rank 2; of those on two hosts,
// as on cpu, with rank 3.
TEST_CASE("Sharded job: while parts move, a rank may die that gives or receives them") {
  using Deaths = std::map<std::pair<int, int>, std::string>;
  for (const std::string& backend : kBackends) {
    const int other = backend == "cpu" ? 2 : 3;
    const std::vector<Deaths> all = {
        {{{0, 0}, "shards:2"}},
        {{{1, 0}, "reduced:2"}, {{1, 1}, "shards:1"}},
        {{{1, 0}, "reduced:2"}, {{1, 1}, "staged:1"}},
        {{{1, 0}, "reduced:2"}, {{other, 0}, "shards:4"}},
    };
    for (const Deaths& deaths : all) {
      const auto n = static_cast<int>(deaths.size());
      const Run run{.backend = backend,
                    .replacements = n,
                    .lives = n,
                    .steps = 4,
                    .weights = 700'000,
                    .deaths = deaths,
                    .is_sharded = true};
      const Outcome outcome(run);
      INFO(backend << "\n" << outcome.host.trace());
      CHECK(outcome.lost == "");
      CHECK(outcome.problem == "");
      CHECK(outcome.host.deaths() == n);
    }
  }
}

TEST_CASE("Sharded job: the rank and the one with its copy die, and a checkpoint is left") {
  const Run run{.replacements = 2,
                .lives = 2,
                .deaths = {{{1, 0}, "reduced:3"}, {{2, 0}, "reduced:3"}},
                .is_sharded = true};
  const Outcome outcome(run);
  INFO(outcome.host.trace());
  CHECK(outcome.problem == "");
  CHECK_THAT(outcome.lost,
             Catch::Contains("\"momenta\" after 2 steps: shards 3 to 5, which rank 1 on ") &&
                 Catch::Contains("had, and rank 2 on ") &&
                 Catch::Contains("a copy of, are lost with these ranks; start from a "
                                 "checkpoint"));
}

TEST_CASE("Sharded job: the same, and all go back to what the memory folder has") {
  for (const std::string& backend : kBackends) {
    const Run run{.backend = backend,
                  .replacements = 2,
                  .lives = 2,
                  .deaths = {{{1, 0}, "reduced:8"}, {{2, 0}, "reduced:8"}},
                  .variables = {{"MEMORY_EVERY", "2"}},
                  .is_sharded = true};
    const Outcome outcome(run);
    INFO(outcome.host.trace());
    CHECK(outcome.problem == "");
    CHECK(outcome.lost == "");
    CHECK(outcome.host.deaths() == 2);
  }
}

TEST_CASE("Sharded job: workers die at random points, and so do their replacements") {
  const std::vector<std::string> points = {
      "seated",  "joined",    "settled", "shards",  "staged",  "installed", "send",
      "receive", "received",  "body",    "reduced", "refresh", "refreshed", "commit",
      "apply",   "committed", "between", "saving",  "saved",   "restored"};
  for (unsigned seed = 1; seed <= seeds(); ++seed) {
    const Run run = with_random_deaths({.is_sharded = true}, seed, kBackends, points);
    INFO("seed " << seed);
    const Outcome outcome(run);
    INFO(run.backend << "\n" << outcome.host.trace() << outcome.lost);
    CHECK(outcome.problem == "");
    CHECK(outcome.host.repeated_planned() == 0);
  }
}

}  // namespace
}  // namespace ddprun::test
