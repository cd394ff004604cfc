#pragma once
// How long a thread was ready to run while others had the CPUs: the kernel's count in
// /proc/thread-self/schedstat. Used by timer_shell.

#include <chrono>
#include <optional>
#include <thread>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {

class RunDelay {
 public:
  // The delay of the calling thread since it began; std::nullopt if the kernel does not count it.
  std::optional<std::chrono::nanoseconds> of_this_thread();

 private:
  UniqueFd file_;
  std::thread::id thread_;  // The thread of the open file.
};

}  // namespace ddprun::worker_sdk
