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
  std::int64_t steps = 12;
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
    const std::string wanted =
        quiet_digest(run.weights, run.steps) + " " + std::to_string(run.steps / 4 * 4);
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
      std::ifstream file(entry.path());
      std::string line;
      std::getline(file, line);
      ++results;
      if (line != wanted) problem += entry.path().filename().string() + ": " + line + "\n";
    }
  }

  std::map<std::string, std::string> of(const Run& run, int slot, int life) {
    auto variables = run.variables;
    variables["BACKEND"] = run.backend;
    variables["STEPS"] = std::to_string(run.steps);
    variables["WEIGHTS"] = std::to_string(run.weights);
    variables["RESULT"] = folder / (std::to_string(slot) + "." + std::to_string(life));
    const auto found = run.deaths.find({slot, life});
    if (found != run.deaths.end()) variables["DIE"] = found->second;
    return variables;
  }

  TemporaryDirectory folder;
  ElasticHost host;
  std::string problem;
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

const char* const kBackends[] = {"shm", "gloo", "cpu"};

TEST_CASE("Elastic job: in a quiet run nothing changes") {
  for (const char* backend : kBackends) check({.backend = backend}, 0);
}

TEST_CASE("Elastic job: the others go on where one dies, whatever it did") {
  for (const char* backend : kBackends) {
    for (const char* point : {"body:3", "reduced:3", "commit:3", "apply:3", "committed:3",
                              "between:1", "joined:1", "settled:1", "seated:1"}) {
      for (const int slot : {0, 2}) {
        INFO(point << " in slot " << slot);
        check({.backend = backend, .deaths = {{{slot, 0}, point}}}, 1);
      }
    }
  }
}

TEST_CASE("Elastic job: a replacement receives the state, and no step is repeated for it") {
  for (const char* backend : kBackends) {
    Run run{.backend = backend, .replacements = 1, .steps = 60, .deaths = {{{1, 0}, "reduced:3"}}};
    check(run, 1);
  }
}

}  // namespace
}  // namespace ddprun::test
