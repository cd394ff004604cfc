#pragma once
// How many steps lie between two saves of a job's state in the memory folder. Pure: times come in
// as arguments. Used by worker_sdk/job, whose ranks agree on the largest proposal.

#include <chrono>
#include <cstdint>
#include <deque>

namespace ddprun::elastic {

class SaveInterval {
 public:
  // Steps until the first save, before it is known how long a step and a save take.
  static constexpr std::int64_t kFirst = 10;
  static constexpr std::int64_t kMost = 100'000;
  static constexpr double kCost = 0.005;  // Of the time of the steps.

  // `fixed`: in steps; 0: as many as keep the cost at kCost.
  explicit SaveInterval(std::int64_t fixed) : fixed_(fixed) {}

  void step_took(std::chrono::nanoseconds time);
  void save_took(std::chrono::nanoseconds time);

  // As this rank would have it; 0: not known yet.
  std::int64_t proposal() const;
  // The next step after `committed` at which all save. `agreed`: the largest proposal of all ranks.
  std::int64_t next(std::int64_t committed, std::int64_t agreed) const;
  // The same where a round begins: sooner, for rounds that are shorter than the interval would
  // otherwise never save.
  std::int64_t first(std::int64_t committed, std::int64_t agreed) const;

 private:
  const std::int64_t fixed_;
  std::deque<std::chrono::nanoseconds> steps_, saves_;  // The latest.
};

}  // namespace ddprun::elastic
