#include "worker_sdk/worker/loss_listener.h"

#include <pthread.h>

#include <limits>
#include <utility>

#include "common/assert.h"
#include "common/system/signals.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {

std::optional<LossNotice> read_loss(const ProgressPage& page) {
  const std::uint64_t lost = page.lost.load(std::memory_order_acquire);
  if (lost == 0 || lost > std::numeric_limits<int>::max()) return std::nullopt;
  LossNotice word{.rank = static_cast<int>(lost - 1), .text = {}};
  for (const auto& letter : page.why) {
    const char c = letter.load(ProgressPage::kRelaxed);
    if (c == '\0') break;
    word.text += c >= ' ' && c <= '~' ? c : '?';
  }
  return word;
}

// Reads the bell before the notice, so that a notice written later ends the sleep.
std::optional<LossNotice> await_loss(ProgressPage& page, const std::atomic<bool>& stopping) {
  for (;;) {
    const std::uint32_t seen = page.bell.load(std::memory_order_acquire);
    if (stopping.load()) return std::nullopt;
    if (auto word = read_loss(page)) return word;
    await_ring(page.bell, seen);
  }
}

LossListener::LossListener(ProgressPage& page) : page_(page), forks_(fork_count()) {}

// A forked child has no such thread.
LossListener::~LossListener() {
  if (!thread_.joinable()) return;
  if (forks_ != fork_count()) {
    thread_.detach();
    return;
  }
  stopping_.store(true);
  ring(page_.bell);
  thread_.join();
}

std::shared_ptr<void> LossListener::listen(Listener listener) {
  DDPRUN_ASSERT(listener != nullptr);
  const std::lock_guard lock(mutex_);
  if (notified_) listener(*read_loss(page_));
  const auto at = listeners_.insert(listeners_.end(), std::move(listener));
  if (!notified_) start();
  return {this, [at](LossListener* listening) {
            const std::lock_guard other_lock(listening->mutex_);
            listening->listeners_.erase(at);
          }};
}

void LossListener::start() {
  if (thread_.joinable()) return;
  try {
    thread_ = start_thread("ddprun-ear", {}, [this] { run(); });
  } catch (const Error&) {
    // The loss is noticed later, by ends of connections and deadlines.
  }
}

void LossListener::run() {
  const auto word = await_loss(page_, stopping_);
  if (!word) return;
  const std::lock_guard lock(mutex_);
  notified_ = true;
  for (const Listener& listener : listeners_) listener(*word);
}

}  // namespace ddprun::worker_sdk
