#pragma once
// Cuts the time of a rank into the phases of a step, without gaps. Pure: each call says what time
// it is. Used by distributed_data_parallel.cc.

#include "worker_sdk/timer/step_times.h"

namespace ddprun::worker_sdk {

class Phases {
 public:
  using Time = StepClock::time_point;

  explicit Phases(Time now) : last_(now) { current_.begin = now; }

  void begin_forward(Time now) { enter(&StepTimes::forward, now); }
  void begin_backward(Time now) {
    enter(&StepTimes::backward, now);
    current_.pass_begin = now;
  }
  // What others call a part of outside.
  void begin_data(Time now) { enter(&StepTimes::data, now); }
  void begin_optimizer(Time now) { enter(&StepTimes::optimizer, now); }
  // The pass has nothing to wait for: it was one in no_sync(), or failed.
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

}  // namespace ddprun::worker_sdk
