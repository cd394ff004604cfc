#pragma once
// Runs of elastic_worker to their end, in which it dies where it is asked to, and what comes out.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/worker_sdk/elastic_task.h"
#include "tests/support/elastic_host.h"
#include "tests/support/ranks.h"

namespace ddprun::test {

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
  bool is_sharded = false;
  std::map<std::pair<int, int>, std::string> gpus = {};  // FAKE_NCCL, by slot and life.
};

inline std::string program() {
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
    std::ifstream losses(lost_folder / "lost");
    lost.assign(std::istreambuf_iterator<char>(losses), {});
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
    return number + " " + quiet_digest(run.weights, steps, run.is_sharded) + " " + number;
  }

  std::map<std::string, std::string> of(const Run& run, int slot, int life) {
    auto variables = run.variables;
    variables["BACKEND"] = run.backend;
    variables["STEPS"] = std::to_string(run.steps);
    variables["LIVES"] = std::to_string(run.lives);
    variables["LIFE"] = std::to_string(life);
    variables["WEIGHTS"] = std::to_string(run.weights);
    variables["RESULT"] = folder / (std::to_string(slot) + "." + std::to_string(life));
    variables["LOST"] = lost_folder / "lost";
    if (run.is_sharded) variables["SHARDED"] = "yes";
    if (variables.contains("MEMORY_EVERY")) variables["DDPRUN_MEMORY"] = lost_folder / "memory";
    if (variables.contains("MEMORY_EVERY")) variables["BEGAN"] = lost_folder / "began";
    const auto gpu = run.gpus.find({slot, life});
    if (gpu != run.gpus.end()) variables["FAKE_NCCL"] = gpu->second;
    const auto found = run.deaths.find({slot, life});
    if (found != run.deaths.end()) variables["DIE"] = found->second;
    return variables;
  }

  TemporaryDirectory folder, lost_folder;
  ElasticHost host;
  std::string problem, any_result;
  std::string lost;  // What workers have printed of sharded state that was lost.
  int results = 0;

  // At which step each process began.
  std::vector<std::int64_t> began() const {
    std::ifstream file(lost_folder / "began");
    std::vector<std::int64_t> steps;
    for (std::int64_t step = 0; file >> step;) steps.push_back(step);
    return steps;
  }
};

inline void check(const Run& run, int deaths) {
  const Outcome outcome(run);
  INFO(run.backend << "\n" << outcome.host.trace());
  CHECK(outcome.problem == "");
  CHECK(outcome.lost == "");
  CHECK(outcome.host.deaths() == deaths);
  CHECK(outcome.results == outcome.host.finished());
  CHECK(outcome.results >= 1);
  CHECK(outcome.host.repeated() <= 1);
  CHECK(outcome.host.repeated_planned() == 0);
}

// How many runs a test with random deaths makes.
inline unsigned seeds() {
  const char* text = std::getenv("DDPRUN_JOB_SEEDS");
  return text ? static_cast<unsigned>(std::atoi(text)) : 8;
}

// `run` with what the seed makes of it: backend, number of ranks, the vote, and deaths at some of
// `points`, of workers and of their replacements.
inline Run with_random_deaths(Run run, unsigned seed, const std::vector<std::string>& backends,
                              const std::vector<std::string>& points) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  run.backend = backends[below(backends.size())];
  run.slots = 2 + static_cast<int>(below(4));
  run.replacements = 6;
  run.steps = 40;
  if (below(2) == 0) run.variables["VOTE"] = "carried";
  if (seed % 2 == 0) run.variables["DDPRUN_AUDIT"] = "30";
  if (seed % 3 == 0) run.variables["MEMORY_EVERY"] = "3";
  for (int slot = 0; slot < run.slots; ++slot) {
    for (int life = 0; life < 3; ++life) {
      if (below(2) == 0) continue;
      const std::string point = points[below(points.size())];
      run.deaths[{slot, life}] = point + ":" + std::to_string(1 + below(6));
    }
  }
  return run;
}

}  // namespace ddprun::test
