// A job whose workers die and are replaced, at every point that a job passes: what comes out is
// what a quiet run gives, and every sample is in exactly one committed step.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/process/worker_sdk/elastic_task.h"
#include "tests/support/elastic_host.h"
#include "tests/support/ranks.h"

namespace ddprun::test {
namespace {

struct Run {
  std::string backend = "shm";
  int slots = 4;
  int replacements = 0;
  int lives = 0;            // So many replacements take part in the end.
  std::int64_t steps = 12;  // At least.
  std::size_t weights = 100;
  // "reduced:3", by slot and life.
  std::map<std::pair<int, int>, std::string> deaths = {};
  std::map<std::string, std::string> variables = {};
};

std::string program() {
  return std::filesystem::canonical("/proc/self/exe").parent_path() / "elastic_worker";
}

// Runs it to its end and compares what each worker has got.
struct Outcome {
  explicit Outcome(const Run& run)
      : host({.program = program(),
              .slots = run.slots,
              .replacements = run.replacements,
              .spread = run.backend == "cpu",
              .environment = [this, run](int slot, int life) { return of(run, slot, life); }}) {
    problem = host.run();
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
      std::ifstream file(entry.path());
      std::string line;
      std::getline(file, line);
      ++results;
      if (line != wanted(run, std::atoll(line.c_str()))) {
        problem += entry.path().filename().string() + ": " + line + "\n";
      }
      if (results > 1 && line != any_result) problem += "results differ\n";
      any_result = line;
    }
  }

  static std::string wanted(const Run& run, std::int64_t steps) {
    const std::string number = std::to_string(steps);
    return number + " " + quiet_digest(run.weights, steps) + " " + number;
  }

  std::map<std::string, std::string> of(const Run& run, int slot, int life) {
    auto variables = run.variables;
    variables["BACKEND"] = run.backend;
    variables["STEPS"] = std::to_string(run.steps);
    variables["LIVES"] = std::to_string(run.lives);
    variables["LIFE"] = std::to_string(life);
    variables["WEIGHTS"] = std::to_string(run.weights);
    variables["RESULT"] = folder / (std::to_string(slot) + "." + std::to_string(life));
    const auto found = run.deaths.find({slot, life});
    if (found != run.deaths.end()) variables["DIE"] = found->second;
    return variables;
  }

  TemporaryDirectory folder;
  ElasticHost host;
  std::string problem, any_result;
  int results = 0;
};

void check(const Run& run, int deaths) {
  const Outcome outcome(run);
  INFO(run.backend << "\n" << outcome.host.trace());
  CHECK(outcome.problem == "");
  CHECK(outcome.host.deaths() == deaths);
  CHECK(outcome.results == outcome.host.finished());
  CHECK(outcome.results >= 1);
  CHECK(outcome.host.repeated() <= 1);
  CHECK(outcome.host.repeated_planned() == 0);
}

unsigned seeds() {
  const char* wish = std::getenv("DDPRUN_JOB_SEEDS");
  return wish ? static_cast<unsigned>(std::atoi(wish)) : 8;
}
const char* const kBackends[] = {"shm", "gloo", "cpu"};

TEST_CASE("Elastic job: in a quiet run nothing changes") {
  for (const char* backend : kBackends) check({.backend = backend}, 0);
}

TEST_CASE("Elastic job: the others go on where one dies, whatever it did") {
  for (const char* backend : kBackends) {
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
  for (const char* backend : kBackends) {
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
  for (const char* backend : kBackends) {
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
  for (const char* backend : kBackends) {
    for (const Deaths& deaths : all) {
      const auto n = static_cast<int>(deaths.size());
      check({.backend = backend, .replacements = n, .lives = n, .deaths = deaths}, n);
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
  for (const char* backend : kBackends) {
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

TEST_CASE("Elastic job: a body that swallows the error does not commit") {
  for (const char* backend : kBackends) {
    check({.backend = backend,
           .deaths = {{{1, 0}, "body:3"}},
           .variables = {{"SWALLOW", "yes"}, {"VOTE", "carried"}}},
          1);
  }
}

TEST_CASE("Elastic job: who fails within its commit takes the state of another") {
  for (const char* backend : kBackends) {
    const Run run{
        .backend = backend, .deaths = {{{2, 0}, "apply:3"}}, .variables = {{"TEAR", "1"}}};
    check(run, 1);
  }
}

TEST_CASE("Elastic job: workers die at random points, and so do their replacements") {
  const char* const points[] = {"seated", "joined",  "settled", "send",  "receive",   "received",
                                "body",   "reduced", "commit",  "apply", "committed", "between"};
  for (unsigned seed = 1; seed <= seeds(); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
    Run run{.backend = kBackends[below(3)], .slots = 2 + below(4), .replacements = 6, .steps = 40};
    if (below(2) == 0) run.variables["VOTE"] = "carried";
    for (int slot = 0; slot < run.slots; ++slot) {
      for (int life = 0; life < 3; ++life) {
        if (below(2) == 0) continue;
        run.deaths[{slot, life}] =
            std::string(points[below(std::size(points))]) + ":" + std::to_string(1 + below(6));
      }
    }
    INFO("seed " << seed);
    const Outcome outcome(run);
    INFO(run.backend << "\n" << outcome.host.trace());
    CHECK(outcome.problem == "");
    CHECK(outcome.host.repeated_planned() == 0);
  }
}

}  // namespace
}  // namespace ddprun::test
