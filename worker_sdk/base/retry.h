#pragma once
// Polls until a condition is true, if nothing can be waited for.

#include <algorithm>
#include <thread>

#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// Calls `attempt` until it returns true (result: true) or the deadline has passed (false), at first
// every millisecond, later every `longest_pause`. Always calls it at least once.
template <class Attempt>
bool retry_until(Clock::time_point deadline, Attempt attempt,
                 Clock::duration longest_pause = std::chrono::milliseconds(50)) {
  Clock::duration pause = std::chrono::milliseconds(1);
  for (;;) {
    if (attempt()) return true;
    const Clock::duration left = deadline - Clock::now();
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(pause * 2, longest_pause);
  }
}

}  // namespace ddprun::worker_sdk
