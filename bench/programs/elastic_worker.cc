// A worker for bench/elastic.py: steps of a given length, a gradient of 1 MiB, and a large state.
//
//   bench_elastic_worker job           a Job: survivors keep their process
//   bench_elastic_worker checkpoints   rank 0 saves every CHECKPOINT_EVERY steps; a restart loads
//
// Writes into the folder STAMPS, in files named by its pid: "<rank> <world size> <step>
// <CLOCK_MONOTONIC in ns>" for each committed step, and as a Job what
// tests/failures/sample_count.py judges. STATE_MB and STEP_MS are the size of the state and the
// length of a step's computation.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

constexpr std::size_t kGradient = std::size_t{1} << 18;
constexpr std::int64_t kForever = std::int64_t{1} << 40;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value) return value;
  std::fprintf(stderr, "%s is not set\n", name);
  std::exit(2);
}

// Lines of this process; each is written at once, for the process may be killed.
class Lines {
 public:
  explicit Lines(const std::string& ending)
      : fd_(::open((variable("STAMPS") + "/" + std::to_string(::getpid()) + ending).c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}
  void write(const std::string& line) {
    if (::write(fd_, line.data(), line.size()) < 0) std::_Exit(99);
  }

 private:
  const int fd_;
};

class Worker {
 public:
  Worker()
      : step_ms_(std::stoi(variable("STEP_MS"))),
        state_(std::stoul(variable("STATE_MB")) * (std::size_t{1} << 18), 1.0f) {}

  void run_job() {
    Lines samples(".samples");
    const ddprun::GlobalBatches batches(
        {.sets = {{.length = 1000}}, .global_batch = 48, .shards = 16, .seed = 3});
    ddprun::elastic::Job job;
    job.keep("state", ddprun::buffer(state_.data(), state_.size()));
    job.run(kForever, [&](ddprun::elastic::Step& step) {
      for (const int shard : step.shards(batches)) note_shard(samples, step, batches, shard);
      compute(step.group());
      step.commit([&] { apply(step.number()); });
      samples.write("commit " + text_of(step) + "\n");
      stamp(step.rank(), step.world_size(), step.number());
    });
  }

  void run_with_checkpoints() {
    auto group = ddprun::ProcessGroup::init();
    const std::int64_t every = std::stol(variable("CHECKPOINT_EVERY"));
    for (std::int64_t step = load();; ++step) {
      compute(group);
      apply(step);
      stamp(group.rank(), group.world_size(), step);
      if (group.rank() == 0 && (step + 1) % every == 0) save(step + 1);
    }
  }

 private:
  static std::string text_of(ddprun::elastic::Step& step) {
    return std::to_string(step.round()) + " " + std::to_string(step.rank()) + " " +
           std::to_string(step.number());
  }

  static void note_shard(Lines& samples, ddprun::elastic::Step& step,
                         const ddprun::GlobalBatches& batches, int shard) {
    std::string line = "shard " + text_of(step) + " " + std::to_string(shard);
    for (const ddprun::Sample& sample : batches.shard(step.number(), shard)) {
      line += " " + std::to_string(sample.epoch) + ":" + std::to_string(sample.index);
    }
    samples.write(line + "\n");
  }

  void compute(ddprun::ProcessGroup& group) {
    ::poll(nullptr, 0, step_ms_);
    gradient_.assign(kGradient, 1.0f);
    group.all_reduce(ddprun::buffer(gradient_.data(), gradient_.size()));
  }
  void apply(std::int64_t step) {
    state_[static_cast<std::size_t>(step) % state_.size()] += gradient_.front();
  }
  void stamp(int rank, int world_size, std::int64_t step) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    stamps_.write(std::to_string(rank) + " " + std::to_string(world_size) + " " +
                  std::to_string(step) + " " +
                  std::to_string(std::chrono::nanoseconds(now).count()) + "\n");
  }

  static std::string checkpoint() { return variable("STAMPS") + "/checkpoint"; }
  void save(std::int64_t step) const {
    std::ofstream file(checkpoint() + ".new", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&step), sizeof step);
    file.write(reinterpret_cast<const char*>(state_.data()),
               static_cast<std::streamsize>(state_.size() * sizeof(float)));
    file.close();
    std::filesystem::rename(checkpoint() + ".new", checkpoint());
  }
  std::int64_t load() {
    std::int64_t step = 0;
    std::ifstream file(checkpoint(), std::ios::binary);
    if (!file.read(reinterpret_cast<char*>(&step), sizeof step)) return 0;
    file.read(reinterpret_cast<char*>(state_.data()),
              static_cast<std::streamsize>(state_.size() * sizeof(float)));
    return step;
  }

  const int step_ms_;
  std::vector<float> state_, gradient_;
  Lines stamps_{".stamps"};
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string how = argc > 1 ? argv[1] : "";
    if (how == "job") return Worker().run_job(), 0;
    if (how == "checkpoints") return Worker().run_with_checkpoints(), 0;
    std::fprintf(stderr, "usage: %s job|checkpoints\n", argv[0]);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 97;
  }
}
