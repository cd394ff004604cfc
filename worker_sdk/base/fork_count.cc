#include "worker_sdk/base/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace ddprun::worker_sdk {
namespace {

std::atomic<std::uint64_t> forks{0};

void count_child() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t fork_count() noexcept {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, count_child);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace ddprun::worker_sdk
