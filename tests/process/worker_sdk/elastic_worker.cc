// A worker of an elastic job, which ends itself where DIE names it: DIE="reduced:3" is at the third
// time that it has reduced; with ":throw" behind it, an error is thrown instead. Its sums are of
// whole numbers, so that they do not depend on which rank has computed what; at the end it writes
// all that has become of its state to RESULT.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <numeric>
#include <utility>

#include "ddprun/elastic/job.h"
#include "tests/process/worker_sdk/elastic_task.h"
#include "worker_sdk/job/kept_state.h"

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
  bool throws = false;
};
Death death;
int rounds_begun = 0;  // By this process.

// An error of a lost peer is right only in the round in which another dies, too. On a slow machine
// that one may be dead before we are at our point.
void at_point(std::string_view point) {
  if (point != death.point || --death.left != 0) return;
  if (death.throws && rounds_begun > 1) return;
  if (death.throws) throw ddprun::Error(ddprun::ErrorKind::peer_lost, {}, "as asked for");
  ::raise(SIGKILL);
}

void read_death() {
  const std::string text = variable("DIE");
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return;
  death = {.point = text.substr(0, colon),
           .left = std::stoi(text.substr(colon + 1)),
           .throws = text.ends_with(":throw")};
  ddprun::elastic::on_point.store(at_point);
}

// POISON="3/7 crash": in shard 7 of step 3; "3+/7 crash": of step 3 and all later ones.
void end_of_poison(Step& step, int shard) {
  const std::string poison = variable("POISON");
  const std::size_t slash = poison.find('/'), blank = poison.find(' ');
  if (slash == std::string::npos || blank == std::string::npos) return;
  if (poison.substr(slash + 1, blank - slash - 1) != std::to_string(shard)) return;
  const std::int64_t begin = std::stoll(poison);
  const bool stays = poison[slash - 1] == '+';
  if (stays ? step.number() < begin : step.number() != begin) return;
  if (poison.ends_with("mark")) return step.capture(shard, "the loss is too large");
  if (poison.ends_with("throw")) throw std::runtime_error("this sample is poison");
  ::raise(poison.ends_with("kill") ? SIGKILL : SIGABRT);  // Sanitizers make exits of others.
}

// The weights change by momenta, of which each rank has some.
void use_momenta(Step& step, ddprun::elastic::Sharded& momenta, Contribution& sums,
                 std::size_t weights) {
  const auto before = momenta.now<std::int64_t>();
  const auto after = momenta.next<std::int64_t>();
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i] = next_momentum(before[i], sums[momenta.first() + i]);
  }
  momenta.gather_next(step.group(), ddprun::buffer(sums.data(), weights));
}

// Once the file STOP is there, as many as LIVES wants.
std::int64_t life() {
  const bool stop = ::access(variable("STOP", "/nowhere").c_str(), F_OK) == 0;
  return std::stoll(variable(stop ? "LIVES" : "LIFE"));
}

// In memory of the GPU, where there is one; each round has its own.
void reduce(Step& step, Contribution& part) {
  static int round = -1;
  static std::shared_ptr<void> memory;
  ddprun::ProcessGroup& group = step.group();
  if (group.device() < 0) {
    return group.all_reduce(ddprun::buffer(part.data(), part.size()));
  }
  const std::size_t bytes = (part.size() + 1) * sizeof(part[0]);  // And the vote.
  if (round != step.round()) memory = group.allocate(bytes);
  round = step.round();
  group.copy(memory.get(), part.data(), part.size() * sizeof(part[0]));
  group.all_reduce({memory.get(), part.size(), ddprun::DataType::i64});
  group.copy(part.data(), memory.get(), part.size() * sizeof(part[0]));
}

std::uint64_t hash_of(const ElasticState& state, const std::vector<ddprun::Sample>& samples) {
  auto part = no_contribution(state, 0);
  add_shard(part, state, samples);
  return ddprun::checksum(part.data(), part.size() * sizeof(part[0]));
}

// "3/7 4be2..." for each shard, in the file HASHES.
void note_hash(std::int64_t step, int shard, std::uint64_t hash) {
  static std::ofstream file(variable("HASHES"));
  if (!file.is_open()) return;
  file << step << "/" << shard << " " << std::hex << std::setw(16) << std::setfill('0') << hash
       << std::dec << std::endl;
}

// SLOW is the local rank that takes long for each shard. When it has given shards to others, it
// must not get them back because a round has ended.
void be_slow(const Step& step, std::size_t shards) {
  static int round = -1;
  static bool has_given = false;
  if (variable("SLOW").empty()) return;
  const bool is_slow = variable("SLOW") == variable("LOCAL_RANK");
  const std::size_t even = 12 / static_cast<std::size_t>(step.world_size());
  if (is_slow && has_given && round != step.round() && shards >= even) {
    throw std::runtime_error("a new round has forgotten how slow this rank is");
  }
  round = step.round();
  if (shards + 1 < even) has_given = true;
  ::poll(nullptr, 0, static_cast<int>(shards) * (is_slow ? 6 : 1));
}

void run_step(Step& step, ElasticState& state, const ddprun::GlobalBatches& batches,
              ddprun::elastic::Sharded* momenta) {
  using ddprun::elastic::pass;
  static int round = -1;
  if (std::exchange(round, step.round()) != step.round() && ++rounds_begun == 1) {
    std::ofstream(variable("BEGAN", "/dev/null"), std::ios::app) << step.number() << std::endl;
  }
  pass("body");
  auto part = no_contribution(state, life());
  const auto mine = step.shards(batches);
  be_slow(step, mine.size());
  for (const int shard : mine) {
    const auto samples = step.samples(batches, shard);
    if (!samples.empty()) end_of_poison(step, shard);
    add_shard(part, state, samples);
    if (step.is_audited(shard)) step.audit(shard, hash_of(state, samples));
    note_hash(step.number(), shard, hash_of(state, samples));
  }
  for (const int shard : step.audits()) {
    step.audit(shard, hash_of(state, step.samples(batches, shard)));
  }
  const bool carries_vote = variable("VOTE") == "carried";
  if (carries_vote) part.push_back(step.vote());
  const bool swallows = variable("SWALLOW") == "yes";
  try {
    reduce(step, part);
  } catch (const ddprun::Error&) {
    if (!swallows) throw;
  }
  if (carries_vote) {
    step.voted(part.back() != 0);
    part.pop_back();
  }
  pass("reduced");
  if (momenta) use_momenta(step, *momenta, part, state.weights.size());
  step.commit([&] {
    pass("apply");
    if (variable("TEAR") == variable("LOCAL_RANK", "none") && step.number() == 2 &&
        !step.is_repeated()) {
      state.weights.back() = -1;
      throw ddprun::Error(ddprun::ErrorKind::peer_lost, {}, "torn");
    }
    apply_step(state, part);
    if (variable("DRIFT") == std::to_string(step.number())) ++state.weights.back();
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

bool is_sharded() { return variable("SHARDED") == "yes"; }

ddprun::elastic::ShardedOptions momenta_of(const ElasticState& state) {
  return {.count = state.weights.size(),
          .type = ddprun::DataType::i64,
          .shards = kElasticShards,
          .fill = [](std::size_t first, ddprun::Buffer part) {
            auto* const values = static_cast<std::int64_t*>(part.data);
            for (std::size_t i = 0; i < part.count; ++i) values[i] = first_momentum(first + i);
          }};
}

// As from a checkpoint of before the first step.
void begin_again(Job& job, ElasticState& state, const ddprun::Error& error) {
  std::ofstream(variable("LOST"), std::ios::app) << error.what() << std::endl;
  const ElasticState first(state.weights.size());  // The arrays stay where they are.
  std::copy(first.weights.begin(), first.weights.end(), state.weights.begin());
  std::copy(first.seen.begin(), first.seen.end(), state.seen.begin());
  state.history.clear();
  state.lives = 0;
  job.resume(0);
}

int work() {
  ElasticState state(static_cast<std::size_t>(std::stoul(variable("WEIGHTS", "100"))));
  const ddprun::GlobalBatches batches = make_batches();
  ddprun::elastic::JobOptions options;
  options.init.backend = variable("BACKEND", "auto");
  options.skip_poison = variable("SKIP") == "yes";
  options.memory_every = std::stoll(variable("MEMORY_EVERY", "0"));
  Job job(options);
  job.keep("weights", ddprun::buffer(state.weights.data(), state.weights.size()))
      .keep("seen", ddprun::buffer(state.seen.data(), state.seen.size()))
      .keep("lives", ddprun::buffer(&state.lives, 1))
      .keep(
          "history", [&] { return save_history(state); },
          [&](std::string_view text) { load_history(state, text); });
  ddprun::elastic::Sharded* momenta = nullptr;
  if (is_sharded()) momenta = &job.keep_sharded("momenta", momenta_of(state));
  std::int64_t visited = 0;
  job.between(4, [&](ddprun::ProcessGroup& group) {
    ddprun::elastic::pass("between");
    std::int64_t ranks = 1;
    group.all_reduce(ddprun::buffer(&ranks, 1), ddprun::ReduceOp::sum, {.on_host = true});
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
    try {
      job.run(job.committed() / 4 * 4 + 4,
              [&](Step& step) { run_step(step, state, batches, momenta); });
    } catch (const ddprun::Error& error) {
      if (error.kind() != ddprun::ErrorKind::state_lost) throw;
      begin_again(job, state, error);
    }
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
