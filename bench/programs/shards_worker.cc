// A worker of bench/shards.py: a Job whose shards each take the same work, on ranks of which one
// may be slow. Rank 0 prints "<median ms> <mean ms> <moved shards> <shards of the slow rank> <hash>
// <audited shards>"; the times are those of the second half of the steps, and the audited shards
// those of other ranks that it has computed as well in these.
//
//   STEPS, SHARDS   of the job
//   MS              the time of a shard
//   WORK            "wait": a shard is a pause; "compute": a loop of MS on an idle processor
//   SLOW_RANK       the rank that takes SLOWNESS times as long; -1: none
//   NOISE           0.2: each rank's time of a step varies by up to 20 %
//   EVEN            1: shards do not follow the speed
//   AUDIT           percent of the shards that a second rank computes as well
//   CGROUP          a folder whose cgroup.procs the slow rank writes itself to

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"

namespace {

using Clock = std::chrono::steady_clock;
using ddprun::GradientSums;
using ddprun::elastic::Step;

constexpr std::size_t kWeights = 4096;

double number(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : otherwise;
}

// A chain of additions that no processor shortens.
double add_up(std::int64_t times) {
  volatile double sum = 0;
  for (std::int64_t i = 0; i < times; ++i) sum = sum + 1;
  return sum;
}

class Worker {
 public:
  void work() {
    ddprun::elastic::Job job({.even_shards = number("EVEN", 0) != 0, .audit = number("AUDIT", 0)});
    job.keep("weights", ddprun::buffer(weights_.data(), kWeights));
    job.keep(
        "units", [&] { return sums_.state(); },
        [&](std::string_view state) { sums_.restore(state); });
    job.run(steps_, [&](Step& step) {
      if (times_.size() == static_cast<std::size_t>(steps_ / 2)) {
        audited_before_ = job.counters().audited_shards;
      }
      train(step);
    });
    if (job.rank() != 0) return;
    const std::int64_t audited = job.counters().audited_shards - audited_before_;
    auto last = std::span(times_).subspan(times_.size() / 2);
    std::sort(last.begin(), last.end());
    const double mean =
        std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
    std::printf("%.3f %.3f %lld %lld %llx %lld\n", last[last.size() / 2], mean,
                static_cast<long long>(job.counters().moved_shards), static_cast<long long>(slows_),
                static_cast<unsigned long long>(
                    ddprun::checksum(weights_.data(), kWeights * sizeof(float))),
                static_cast<long long>(audited));
  }

 private:
  void train(Step& step) {
    if (round_ != step.round()) sums_.use(step.group());
    round_ = step.round();
    const bool is_slow = step.rank() == static_cast<int>(number("SLOW_RANK", -1));
    if (is_slow && step.number() == 0) enter_cgroup();
    std::vector<float> gradient(kWeights);
    const std::vector<std::span<float>> out = {gradient};
    const std::vector<std::span<const float>> views = {gradient};
    const double factor = (is_slow ? number("SLOWNESS", 1) : 1) * noise();
    std::int64_t slows = 0;
    for (;;) {
      sums_.begin();
      for (const int shard : step.shards(shards_)) {
        compute(shard, factor, gradient);
        if (step.is_audited(shard)) step.audit(shard, sums_.hash(views));
        sums_.add(views);
        slows += is_slow ? 1 : 0;
      }
      for (const int shard : step.audits()) {
        compute(shard, factor, gradient);
        step.audit(shard, sums_.hash(views));
      }
      const auto result = step.reduce(sums_, out, {.note = slows});
      slows = 0;
      if (result.kind == GradientSums::Kind::over) continue;
      slows_ = result.note;
      break;
    }
    step.commit([&] {
      for (std::size_t k = 0; k < kWeights; ++k) weights_[k] -= 0.01F * gradient[k];
      sums_.commit();
    });
    const auto now = Clock::now();
    times_.push_back(std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
  }

  double noise() {
    const double most = number("NOISE", 0);
    return std::uniform_real_distribution<double>(1 - most, 1 + most)(random_);
  }

  void compute(int shard, double factor, std::vector<float>& gradient) const {
    take(factor);
    for (std::size_t k = 0; k < kWeights; ++k) {
      gradient[k] = weights_[k] / static_cast<float>(3 + shard) - 1e-3F * static_cast<float>(k);
    }
  }

  void take(double factor) const {
    if (is_computing_) return (void)add_up(static_cast<std::int64_t>(times_of_a_shard_ * factor));
    const auto ns = static_cast<std::int64_t>(ms_ * factor * 1e6);
    const timespec pause{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    ::ppoll(nullptr, 0, &pause, nullptr);
  }

  static void enter_cgroup() {
    if (const char* folder = std::getenv("CGROUP")) {
      std::ofstream(std::string(folder) + "/cgroup.procs") << ::getpid() << std::flush;
    }
  }

  const std::int64_t steps_ = static_cast<std::int64_t>(number("STEPS", 100));
  const int shards_ = static_cast<int>(number("SHARDS", 32));
  const double ms_ = number("MS", 2);
  const bool is_computing_ = std::getenv("WORK") && std::string(std::getenv("WORK")) == "compute";
  const double times_of_a_shard_ = number("LOOPS_PER_MS", 300'000) * ms_;
  std::mt19937 random_{static_cast<unsigned>(::getpid())};
  GradientSums sums_{{kWeights}};
  std::vector<float> weights_ = std::vector<float>(kWeights, 1);
  std::vector<double> times_;  // Of each step, in ms.
  Clock::time_point last_ = Clock::now();
  std::int64_t slows_ = 0, audited_before_ = 0;
  int round_ = -1;
};

}  // namespace

int main() { return Worker().work(), 0; }
