#pragma once
// What the sync timer writes down of one step on one rank. Plain values;
// distributed_data_parallel's parts fill them, sync_timer and trace read them. Pure.

#include <chrono>
#include <cstdint>
#include <vector>

namespace ddprun::worker_sdk {

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
  std::chrono::nanoseconds data{0}, optimizer{0};  // Of programs that tell them from outside.
  std::chrono::nanoseconds contended{0};           // Of exposed: during the backward pass.
  std::vector<BucketTimes> buckets;
  bool known = true;  // False: nobody knows its times, but it counts as a step of a window.

  std::chrono::nanoseconds comm() const {
    std::chrono::nanoseconds sum{0};
    for (const BucketTimes& b : buckets) sum += b.comm;
    return sum;
  }
  std::chrono::nanoseconds whole() const {
    return outside + data + optimizer + forward + backward + exposed;
  }
};

}  // namespace ddprun::worker_sdk
