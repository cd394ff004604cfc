#include "worker_sdk/base/round_fence.h"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

std::atomic<std::uint64_t> forks{0};

void count_child() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t fork_count() noexcept {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, count_child);
  return forks.load(std::memory_order_relaxed);
}

void RoundFence::raise(Notice word) {
  const std::lock_guard lock(mutex_);
  if (is_raised()) return;
  notice_ = std::move(word);
  raised_.store(true, std::memory_order_release);
  for (const Listener& listener : listeners_) listener();
}

std::optional<RoundFence::Notice> RoundFence::word() const {
  if (!is_raised()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return notice_;
}

std::shared_ptr<void> RoundFence::listen(Listener listener) {
  DDPRUN_ASSERT(listener != nullptr);
  const std::lock_guard lock(mutex_);
  if (is_raised()) listener();
  const auto at = listeners_.insert(listeners_.end(), std::move(listener));
  return {this, [fence = shared_from_this(), at](RoundFence*) {
            const std::lock_guard fence_lock(fence->mutex_);
            fence->listeners_.erase(at);
          }};
}

}  // namespace ddprun::worker_sdk
