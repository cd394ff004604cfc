// A worker of an elastic job, which ends itself where it is asked to: DIE="reduced:3" is at the
// third time that it has reduced. Its sums are of whole numbers, so that they do not depend on who
// has computed what; at the end it writes all that has become of its state to RESULT.

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>

#include "ddprun/elastic/job.h"
#include "tests/process/worker_sdk/elastic_task.h"
#include "worker_sdk/job/points.h"

namespace {

using ddprun::elastic::Job;
using ddprun::elastic::Step;
using namespace ddprun::test;

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

// Where and when to end.
struct Death {
  std::string point;
  int left = 0;
};
Death death;

void at_point(std::string_view point) {
  if (point == death.point && --death.left == 0) ::raise(SIGKILL);
}

void read_death() {
  const std::string text = variable("DIE");
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return;
  death = {.point = text.substr(0, colon), .left = std::stoi(text.substr(colon + 1))};
  ddprun::elastic::on_point.store(at_point);
}

// POISON="3/7 crash": in shard 7 of step 3.
void end_of_poison(std::int64_t step, int shard) {
  const std::string poison = variable("POISON");
  const std::string here = std::to_string(step) + "/" + std::to_string(shard) + " ";
  if (!poison.starts_with(here)) return;
  if (poison.ends_with("throw")) throw std::runtime_error("this sample is poison");
  ::raise(poison.ends_with("kill") ? SIGKILL : SIGABRT);  // Sanitizers make exits of others.
}

void run_step(Step& step, ElasticState& state, const ddprun::GlobalBatches& batches) {
  using ddprun::elastic::pass;
  pass("body");
  auto part = no_contribution(state, std::stoll(variable("LIFE")));
  for (const int shard : step.shards(batches)) {
    const auto samples = step.samples(batches, shard);
    if (!samples.empty()) end_of_poison(step.number(), shard);
    add_shard(part, state, samples);
  }
  const bool carries_vote = variable("VOTE") == "carried";
  if (carries_vote) part.push_back(step.vote());
  const bool swallows = variable("SWALLOW") == "yes";
  try {
    step.group().all_reduce(ddprun::buffer(part.data(), part.size()));
  } catch (const ddprun::Error&) {
    if (!swallows) throw;
  }
  if (carries_vote) {
    step.voted(part.back() != 0);
    part.pop_back();
  }
  pass("reduced");
  step.commit([&] {
    pass("apply");
    if (variable("TEAR") == variable("LOCAL_RANK") && step.number() == 2 && !step.is_repeated()) {
      state.weights.back() = -1;
      throw ddprun::Error(ddprun::ErrorKind::peer_lost, {}, "torn");
    }
    apply_step(state, part);
  });
}

// A checkpoint, from which any number of ranks can go on: CHECKPOINT is the file that rank 0 of an
// earlier run has written, in its last step.
template <class Value>
void bytes_of(std::vector<Value>& values, const auto& copy) {
  copy(reinterpret_cast<char*>(values.data()),
       static_cast<std::streamsize>(values.size() * sizeof(Value)));
}

void save(const std::string& path, ElasticState& state) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](const char* from, std::streamsize n) { file.write(from, n); };
  bytes_of(state.weights, write), bytes_of(state.seen, write), bytes_of(state.history, write);
}

void load(const std::string& path, ElasticState& state, std::int64_t steps) {
  std::ifstream file(path, std::ios::binary);
  state.history.resize(static_cast<std::size_t>(steps));
  const auto read = [&](char* to, std::streamsize n) { file.read(to, n); };
  bytes_of(state.weights, read), bytes_of(state.seen, read), bytes_of(state.history, read);
  if (!file) throw std::runtime_error("no checkpoint in " + path);
}

int work() {
  ElasticState state(static_cast<std::size_t>(std::stoul(variable("WEIGHTS", "100"))));
  const ddprun::GlobalBatches batches = make_batches();
  ddprun::elastic::JobOptions options;
  options.init.backend = variable("BACKEND", "auto");
  options.skip_poison = variable("SKIP") == "yes";
  Job job(options);
  job.keep("weights", ddprun::buffer(state.weights.data(), state.weights.size()))
      .keep("seen", ddprun::buffer(state.seen.data(), state.seen.size()))
      .keep("lives", ddprun::buffer(&state.lives, 1))
      .keep(
          "history", [&] { return save_history(state); },
          [&](std::string_view text) { load_history(state, text); });
  std::int64_t visited = 0;
  job.between(4, [&](ddprun::ProcessGroup& group) {
    ddprun::elastic::pass("between");
    std::int64_t ranks = 1;
    group.all_reduce(ddprun::buffer(&ranks, 1));
    if (ranks != group.world_size()) std::exit(3);
    visited = job.committed();
    if (group.rank() == 0 && !variable("SAVE").empty()) save(variable("SAVE"), state);
  });
  if (!variable("CHECKPOINT").empty()) {
    const std::int64_t resumed = std::stoll(variable("RESUME"));
    load(variable("CHECKPOINT"), state, resumed);
    job.resume(resumed);
  }
  // Until all that are to be replaced have been.
  const std::int64_t steps = std::stoll(variable("STEPS")), lives = std::stoll(variable("LIVES"));
  do {
    job.run(job.committed() / 4 * 4 + 4, [&](Step& step) { run_step(step, state, batches); });
  } while (job.committed() < steps || state.lives < lives);
  std::ofstream(variable("RESULT"))
      << job.committed() << " " << digest(state) << " " << visited << std::endl;
  return 0;
}

}  // namespace

int main() {
  read_death();
  try {
    return work();
  } catch (const std::exception& error) {
    std::cerr << "elastic_worker: " << error.what() << std::endl;
    return 1;
  }
}
