#pragma once
// All ranks' times of one window of steps: their layout for the exchange, and their evaluation.
// Pure. Used by sync_timer.cc.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ddprun/sync_report.h"

namespace ddprun::worker_sdk {

// The sync timer's record of one step on one rank. Plain values; distributed_data_parallel's parts
// fill them, sync_timer and trace read them. Pure.

using StepClock = std::chrono::steady_clock;

struct BucketTimes {
  StepClock::time_point launched{};  // Its last gradient was there, and its turn had come.
  StepClock::time_point started{};   // Its first collective began.
  std::chrono::nanoseconds comm{0};  // All its collectives.
  std::size_t bytes = 0;
};

struct StepTimes {
  std::int64_t step = 0;
  StepClock::time_point begin{};       // The step before had ended.
  StepClock::time_point pass_begin{};  // Its last backward pass.
  StepClock::time_point pass_end{};
  std::chrono::nanoseconds outside{0}, forward{0}, backward{0}, exposed{0};
  std::chrono::nanoseconds data{0}, optimizer{0};  // Of programs that set them from outside.
  std::chrono::nanoseconds contended{0};           // Part of `exposed`: in the backward pass.
  std::vector<BucketTimes> buckets;
  bool known = true;  // False: its times are unknown, but it counts as a step of a window.

  std::chrono::nanoseconds comm() const {
    std::chrono::nanoseconds sum{0};
    for (const BucketTimes& b : buckets) sum += b.comm;
    return sum;
  }
  std::chrono::nanoseconds whole() const {
    return outside + data + optimizer + forward + backward + exposed;
  }
};

// Cuts the time of a rank into the phases of a step, without gaps. Pure: the time is an argument of
// each call. Used by distributed_data_parallel.cc.
class Phases {
 public:
  using Time = StepClock::time_point;

  explicit Phases(Time now) : last_(now) { current_.begin = now; }

  void begin_forward(Time now) { enter(&StepTimes::forward, now); }
  void begin_backward(Time now) {
    enter(&StepTimes::backward, now);
    current_.pass_begin = now;
  }
  // Parts of `outside` that the program marks.
  void begin_data(Time now) { enter(&StepTimes::data, now); }
  void begin_optimizer(Time now) { enter(&StepTimes::optimizer, now); }
  // The pass has nothing to wait for: it was in no_sync(), or failed.
  void end_local(Time now) { enter(&StepTimes::outside, now); }
  void begin_wait(Time now) {
    enter(&StepTimes::exposed, now);
    current_.pass_end = now;
  }
  // The whole step, less its buckets.
  StepTimes end_step(Time now) {
    enter(&StepTimes::outside, now);
    StepTimes done = current_;
    current_ = StepTimes{.step = done.step + 1, .begin = now, .buckets = {}};
    return done;
  }

 private:
  void enter(std::chrono::nanoseconds StepTimes::*phase, Time now) {
    current_.*phase_ += now - last_;
    last_ = now;
    phase_ = phase;
  }

  Time last_;
  std::chrono::nanoseconds StepTimes::*phase_ = &StepTimes::outside;
  StepTimes current_;
};

// Times of one rank in one step, in microseconds: each StepPhase, then these.
enum : std::size_t { kStepPhases = 5, kExposed = kStepPhases, kComm, kRankPhases };
using RankPhases = std::array<double, kRankPhases>;

// The rank that came last in one step; std::nullopt if the others waited for less than a
// millisecond and less than a twentieth of the step.
std::optional<Straggler> find_straggler(std::span<const RankPhases> ranks);

// The worst of a window by the sum of its late steps; `late`: what find_straggler() found.
std::optional<Straggler> worst_straggler(std::span<const Straggler> late);

// The exchanged array: for each rank its steps' phases, step by step, then the median time of each
// bucket. All in microseconds.
class WindowTable {
 public:
  WindowTable(int world_size, std::size_t steps, std::size_t buckets);

  void put(int rank, const std::vector<StepTimes>& steps);
  const std::vector<float>& values() const { return values_; }
  void assign(std::span<const float> values);

  std::vector<RankPhases> step(std::size_t s) const;  // By rank.
  bool known(std::size_t s) const;                    // All ranks know their times of it.
  double least_bucket(std::size_t b) const;           // Over ranks.

 private:
  std::size_t phases_at(std::size_t rank, std::size_t step) const;
  std::size_t bucket_at(std::size_t rank, std::size_t bucket) const;

  std::size_t world_, steps_, buckets_;
  std::vector<float> values_;
};

// What the table shows for steps of which this rank took `mine`.
SyncWindow summarise(const WindowTable& table, int world_size, const std::vector<StepTimes>& mine);

}  // namespace ddprun::worker_sdk
