#include "worker_sdk/base/round_fence.h"

#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {

void RoundFence::raise(Word word) {
  const std::lock_guard lock(mutex_);
  if (is_raised()) return;
  word_ = std::move(word);
  raised_.store(true, std::memory_order_release);
  for (const Listener& listener : listeners_) listener();
}

std::optional<RoundFence::Word> RoundFence::word() const {
  if (!is_raised()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return word_;
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
