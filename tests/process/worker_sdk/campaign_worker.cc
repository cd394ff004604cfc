// A worker of tests/failures/elastic_campaign.py: a Job that trains until the file STOP exists,
// with exact sums. It writes into the folder LOGS, in files named NODE.pid.time:
//
//   .samples   what tests/failures/sample_count.py judges
//   .stamps    "<step> <round> <rank> <world size> <ns of CLOCK_MONOTONIC>" for each committed step
//   .result    "<steps> <hash of all kept state>", at its end
//
// STEP_MS is the length of a step's computation for a rank that has as many shards as the others
// and usual speed; with SPEEDS=vary each process changes its speed at random every 24 steps, and
// with SPEEDS=even each rank has the same number of shards. STEPS is a number of steps to make
// instead of waiting for STOP; SUMS=f32 makes sums with bits that depend on the ranks. With
// HOSTS=nodes each node is a host of its own.
//
// A bit that flips: FLIP is what it is in, "input", "gradient", "weight" or "sum", on the node
// FLIP_NODE (its first GROUP_RANK), from step FLIP_STEP on, in the first shard that is audited;
// FLIP_BIT is its number. With FLIP_TIMES=always it flips in each audited shard, with fiftieth in
// those of every fiftieth step.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"

namespace {

using ddprun::GradientSums;
using ddprun::elastic::Job;
using ddprun::elastic::Step;

constexpr std::int64_t kSamples = 1000;
constexpr std::array<std::size_t, 3> kSizes = {301, 64, 7};
constexpr std::int64_t kBlock = 16;         // Steps of one run().
constexpr std::int64_t kStopInNote = 4096;  // Above the votes of all ranks.
constexpr int kShards = 32;

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
    Job job({.even_shards = variable("SPEEDS") == "even"});
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
    if (flips(Flip::kWeight, step)) flip(weights_[0]);
    do {
      sums_.begin();
      const auto mine = step.shards(batches_);
      for (const int shard : mine) {
        log_shard(step, shard);
        sums_.add(compute(step, shard));
      }
      for (const int shard : step.audits()) (void)compute(step, shard);
      const auto ms = static_cast<double>(step_ms_ * step.world_size()) *
                      static_cast<double>(mine.size()) / kShards * slowness(step.number());
      ::poll(nullptr, 0, static_cast<int>(ms));
      result = reduce(step);
    } while (result.kind == GradientSums::Kind::over);
    if (result.kind != GradientSums::Kind::good || result.shards != batches_.shards()) {
      throw std::runtime_error("a sum lacks shards or is not finite");
    }
    if (flips(Flip::kSum, step)) flip(gradients_[0]);
    const std::int64_t votes = result.note % kStopInNote;
    if (ends_of(step) == Ends::kVoted) step.voted(votes != 0);
    step.commit([&] { apply(result.note >= kStopInNote); });
    log_commit(step);
  }

  // All ways in which a step can end: what the ranks agree on is carried by reduce(), by commit(),
  // or as a vote.
  enum class Ends { kReduced, kCommitted, kVoted };
  static Ends ends_of(const Step& step) {
    constexpr std::array kEnds = {Ends::kReduced, Ends::kCommitted, Ends::kReduced, Ends::kVoted};
    return kEnds[static_cast<std::size_t>(step.number()) % kEnds.size()];
  }

  // 1 to 4 times the usual time.
  static double slowness(std::int64_t step) {
    if (variable("SPEEDS") != "vary") return 1;
    const auto n = static_cast<std::uint64_t>(step / 24 * 7919 + ::getpid() * std::int64_t{104729});
    constexpr std::array kTimes = {1.0, 1.0, 1.0, 1.5, 2.0, 4.0};
    return kTimes[ddprun::checksum(&n, sizeof n, 0) % kTimes.size()];
  }

  void log_shard(const Step& step, int shard) {
    std::string line = "shard " + text_of(step) + " " + std::to_string(shard);
    for (const ddprun::Sample& sample : batches_.shard(step.number(), shard)) {
      line += " " + std::to_string(sample.epoch) + ":" + std::to_string(sample.index);
    }
    samples_.write(line + "\n");
  }

  using Views = std::vector<std::span<const float>>;
  Views compute(Step& step, int shard) {
    const bool is_audited = step.is_audited(shard);
    const std::int64_t more = is_audited && flips(Flip::kInput, step) ? 1 : 0;
    for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), 0.0f);
    for (const ddprun::Sample& sample : batches_.shard(step.number(), shard)) {
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        for (std::size_t k = 0; k < kSizes[t]; ++k) {
          gradients_[t][k] += weights_[t][k] - wanted(sample.index + more, k + t);
        }
      }
    }
    if (is_audited && flips(Flip::kGradient, step)) flip(gradients_[0]);
    Views views(gradients_.begin(), gradients_.end());
    if (is_audited) step.audit(shard, sums_.hash(views));
    return views;
  }

  enum class Flip { kNone, kInput, kGradient, kWeight, kSum };
  static Flip what_flips() {
    if (variable("FLIP_NODE") != variable("GROUP_RANK", "0")) return Flip::kNone;
    if (variable("TORCHELASTIC_RESTART_COUNT", "0") != "0") return Flip::kNone;
    const std::string what = variable("FLIP");
    if (what == "input") return Flip::kInput;
    if (what == "gradient") return Flip::kGradient;
    if (what == "weight") return Flip::kWeight;
    return what == "sum" ? Flip::kSum : Flip::kNone;
  }
  // Weights and sums go wrong once: that stays.
  bool flips(Flip what, const Step& step) {
    if (what != flip_ || step.number() < flip_step_) return false;
    const bool is_rare = variable("FLIP_TIMES") == "fiftieth";
    if (is_rare && (step.number() - flip_step_) % 50 != 0) return false;
    const bool stays = what == Flip::kWeight || what == Flip::kSum;
    const bool now = !has_flipped_ || (!stays && (is_rare || variable("FLIP_TIMES") == "always"));
    has_flipped_ = true;
    if (now) {
      std::fprintf(stderr, "campaign_worker: a bit flips in step %d\n",
                   static_cast<int>(step.number()));
    }
    return now;
  }
  // In the largest element, so that no rounding hides it.
  void flip(std::vector<float>& values) const {
    const auto is_smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    float& value = *std::max_element(values.begin(), values.end(), is_smaller);
    value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U << flip_bit_);
  }

  GradientSums::Result reduce(Step& step) {
    const bool stop = ::access(variable("STOP", "/nowhere").c_str(), F_OK) == 0;
    const std::int64_t vote = ends_of(step) == Ends::kVoted ? step.vote() : 0;
    const std::vector<std::span<float>> views(gradients_.begin(), gradients_.end());
    const GradientSums::Call call{
        .divide_by = static_cast<double>(batches_.batch_size(step.number())),
        .note = vote + (stop ? kStopInNote : 0)};
    return ends_of(step) == Ends::kReduced ? step.reduce(sums_, views, call)
                                           : sums_.reduce(step.group(), views, call);
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
      {.sets = {{.length = kSamples}}, .global_batch = 48, .shards = kShards, .seed = 3}};
  GradientSums sums_;
  std::vector<std::vector<float>> weights_, speeds_, gradients_;
  std::int64_t ends_ = 0;  // 1: the run() in which this was committed is the last.
  int round_ = -1;
  const Flip flip_ = what_flips();
  const std::int64_t flip_step_ = std::stoll(variable("FLIP_STEP", "0"));
  const int flip_bit_ = std::stoi(variable("FLIP_BIT", "20"));
  bool has_flipped_ = false;
  Lines samples_, stamps_, result_;
};

}  // namespace

int main() {
  if (variable("HOSTS") == "nodes") {
    ::setenv("DDPRUN_HOST", ("host-" + variable("GROUP_RANK", "0")).c_str(), 1);
  }
  try {
    return Worker(stem()).work(), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "campaign_worker: %s\n", error.what());
    return 97;
  }
}
