// A worker of tests/failures/elastic_campaign.py: a Job that trains until the file STOP exists,
// with exact sums. It writes into the folder LOGS, in files named NODE.pid.time:
//
//   .samples   what tests/failures/sample_count.py judges
//   .stamps    "<step> <round> <rank> <world size> <ns of CLOCK_MONOTONIC>" for each committed step
//   .result    "<steps> <hash of all kept state>", at its end
//
// STEP_MS is the length of a step's computation; STEPS a number of steps to make instead of waiting
// for STOP; SUMS=f32 makes sums with bits that depend on the ranks.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "common/checksum.h"

namespace {

using ddprun::GradientSums;
using ddprun::elastic::Job;
using ddprun::elastic::Step;

constexpr std::int64_t kSamples = 1000;
constexpr std::array<std::size_t, 3> kSizes = {301, 64, 7};
constexpr std::int64_t kBlock = 16;         // Steps of one run().
constexpr std::int64_t kStopInNote = 4096;  // Above the votes of all ranks.

std::string variable(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(now).count();
}

// Lines of this process; each is written at once, for the process may be killed.
class Lines {
 public:
  Lines(const std::string& stem, const char* ending)
      : fd_(::open((stem + ending).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}
  void write(const std::string& line) {
    if (::write(fd_, line.data(), line.size()) < 0) throw std::runtime_error("cannot write a log");
  }

 private:
  const int fd_;
};

std::string stem() {
  return variable("LOGS") + "/" + variable("NODE", "n") + "." + std::to_string(::getpid()) + "." +
         std::to_string(now_ns());
}

// Between -1 and 1, of many sizes, so that f32 sums depend on how they are grouped.
float wanted(std::int64_t index, std::size_t k) {
  const auto x = static_cast<float>((static_cast<std::size_t>(index) * 7919 + k * 104729) % 99991);
  return (x / 49995.5f - 1.0f) * (index % 3 == 0 ? 0.01f : 1.0f);
}

class Worker {
 public:
  explicit Worker(const std::string& stem)
      : sums_({kSizes.begin(), kSizes.end()}, {.exact = variable("SUMS") != "f32"}),
        samples_(stem, ".samples"),
        stamps_(stem, ".stamps"),
        result_(stem, ".result") {
    for (const std::size_t size : kSizes) {
      weights_.emplace_back(size, 0.5f);
      speeds_.emplace_back(size, 0.0f);
      gradients_.emplace_back(size, 0.0f);
    }
  }

  void work() {
    Job job;
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      job.keep("weights" + std::to_string(t), ddprun::buffer(weights_[t].data(), kSizes[t]));
      job.keep("speeds" + std::to_string(t), ddprun::buffer(speeds_[t].data(), kSizes[t]));
    }
    job.keep("ends", ddprun::buffer(&ends_, 1));
    job.keep(
        "units", [&] { return sums_.state(); },
        [&](std::string_view state) { sums_.restore(state); });
    const std::int64_t steps = std::stoll(variable("STEPS", "0"));
    do {
      job.run(job.committed() / kBlock * kBlock + kBlock, [&](Step& step) { train(step); });
    } while (steps > 0 ? job.committed() < steps : ends_ == 0);
    result_.write(std::to_string(job.committed()) + " " + hash() + "\n");
  }

 private:
  void train(Step& step) {
    if (step.round() != round_) {
      sums_.use(step.group());
      round_ = step.round();
    }
    GradientSums::Result result;
    do {
      sums_.begin();
      for (const int shard : step.shards(batches_)) add(step, shard);
      ::poll(nullptr, 0, step_ms_);
      result = reduce(step);
    } while (result.kind == GradientSums::Kind::over);
    if (result.kind != GradientSums::Kind::good || result.shards != batches_.shards()) {
      throw std::runtime_error("a sum lacks shards or is not finite");
    }
    const std::int64_t votes = result.note % kStopInNote;
    if (carries_vote(step)) step.voted(votes != 0);
    step.commit([&] { apply(result.note >= kStopInNote); });
    log_commit(step);
  }

  static bool carries_vote(const Step& step) { return step.number() % 2 == 0; }

  void add(Step& step, int shard) {
    std::string line = "shard " + text_of(step) + " " + std::to_string(shard);
    for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), 0.0f);
    for (const ddprun::Sample& sample : batches_.shard(step.number(), shard)) {
      line += " " + std::to_string(sample.epoch) + ":" + std::to_string(sample.index);
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        for (std::size_t k = 0; k < kSizes[t]; ++k) {
          gradients_[t][k] += weights_[t][k] - wanted(sample.index, k + t);
        }
      }
    }
    samples_.write(line + "\n");
    const std::vector<std::span<const float>> views(gradients_.begin(), gradients_.end());
    sums_.add(views);
  }

  GradientSums::Result reduce(Step& step) {
    const bool stop = ::access(variable("STOP", "/nowhere").c_str(), F_OK) == 0;
    const std::int64_t vote = carries_vote(step) ? step.vote() : 0;
    const std::vector<std::span<float>> views(gradients_.begin(), gradients_.end());
    return sums_.reduce(step.group(), views,
                        {.divide_by = static_cast<double>(batches_.batch_size(step.number())),
                         .note = vote + (stop ? kStopInNote : 0)});
  }

  void apply(bool stop) {
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      for (std::size_t k = 0; k < kSizes[t]; ++k) {
        speeds_[t][k] = 0.9f * speeds_[t][k] + gradients_[t][k];
        weights_[t][k] -= 0.05f * speeds_[t][k];
      }
    }
    sums_.commit();
    if (stop) ends_ = 1;
  }

  void log_commit(Step& step) {
    samples_.write("commit " + text_of(step) + "\n");
    stamps_.write(std::to_string(step.number()) + " " + std::to_string(step.round()) + " " +
                  std::to_string(step.rank()) + " " + std::to_string(step.world_size()) + " " +
                  std::to_string(now_ns()) + "\n");
  }

  static std::string text_of(const Step& step) {
    return std::to_string(step.round()) + " " + std::to_string(step.rank()) + " " +
           std::to_string(step.number());
  }

  std::string hash() const {
    std::uint64_t sum = 0;
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      sum = ddprun::checksum(weights_[t].data(), kSizes[t] * sizeof(float), sum);
      sum = ddprun::checksum(speeds_[t].data(), kSizes[t] * sizeof(float), sum);
    }
    const std::string units = sums_.state();
    sum = ddprun::checksum(units.data(), units.size(), sum);
    return std::to_string(sum);
  }

  const int step_ms_ = std::stoi(variable("STEP_MS", "0"));
  const ddprun::GlobalBatches batches_{
      {.sets = {{.length = kSamples}}, .global_batch = 48, .shards = 16, .seed = 3}};
  GradientSums sums_;
  std::vector<std::vector<float>> weights_, speeds_, gradients_;
  std::int64_t ends_ = 0;  // 1: the run() in which this was committed is the last.
  int round_ = -1;
  Lines samples_, stamps_, result_;
};

}  // namespace

int main() {
  try {
    return Worker(stem()).work(), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "campaign_worker: %s\n", error.what());
    return 97;
  }
}
