#pragma once
// Threads of the product, and how processes that share memory wake one another.

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <thread>
#include <utility>

#include "common/system/signals.h"

namespace ddprun {

// A thread of ours in a process that may be a user's program: no handler of that program runs in
// it. Every thread of the product is made here; tests/tidy checks that.

// `name`, of at most 15 bytes, is what debuggers and /proc show. Throws as std::thread does.
template <class Run>
std::thread own_thread(const char* name, Run&& run) {
  const SignalsHeld held;
  std::thread thread(std::forward<Run>(run));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

// A counter in memory that processes share, to sleep on until another one rings it. The agent rings
// the one of a progress page, the SDK listens.

using SharedBell = std::atomic<std::uint32_t>;
static_assert(SharedBell::is_always_lock_free && sizeof(SharedBell) == sizeof(std::uint32_t));

inline void ring(SharedBell& bell) noexcept {
  bell.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

// Sleeps until the bell has been rung since `seen` was read. May return early.
inline void await_ring(SharedBell& bell, std::uint32_t seen) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell), FUTEX_WAIT, seen, nullptr, nullptr,
            0);
}

}  // namespace ddprun
