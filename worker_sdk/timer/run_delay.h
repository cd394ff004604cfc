#pragma once
// How long a thread was ready to run while others had the CPUs: what the kernel counts in
// /proc/thread-self/schedstat. Used by timer_shell.

#include <chrono>
#include <optional>
#include <thread>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {

class RunDelay {
 public:
  // Of the calling thread, since it began. Nothing where the kernel does not count it.
  std::optional<std::chrono::nanoseconds> of_this_thread();

 private:
  UniqueFd file_;
  std::thread::id thread_;  // Whose file it is.
};

}  // namespace ddprun::worker_sdk
