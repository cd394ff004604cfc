#pragma once
// A thread of ours in a process that may be a user's program: no handler of that program runs in
// it. Every thread of the product is made here; tests/tidy checks that.

#include <pthread.h>

#include <thread>
#include <utility>

#include "common/system/signals_held.h"

namespace ddprun {

// `name`, of at most 15 bytes, is what debuggers and /proc show. Throws as std::thread does.
template <class Run>
std::thread own_thread(const char* name, Run&& run) {
  const SignalsHeld held;
  std::thread thread(std::forward<Run>(run));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace ddprun
