#pragma once
// Waiting for a counter in shared memory: spin a little, then sleep in the kernel until the counter
// moves or a check whether the peer still lives is due. Used by shm_team and shm_mailbox.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddprun::worker_sdk {

// A counter that one rank advances and others wait for. Lives in shared memory, zeroed. 32 bits
// because futexes are; comparisons survive the wrap-around.
struct SharedCounter {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

inline bool has_reached(std::uint32_t value, std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(value - target) >= 0;
}

// Sets the counter and wakes the ranks that sleep on it. Only its owner calls this.
void publish(SharedCounter& counter, std::uint32_t value) noexcept;

// Wakes the ranks that sleep on it without a change, to check something else.
void wake_sleepers(SharedCounter& counter) noexcept;

// Waits for at most `limit` until the counter has reached `target`. False: not reached. May return
// early.
bool sleep_until_reached(SharedCounter& counter, std::uint32_t target,
                         std::chrono::nanoseconds limit) noexcept;

// Spins for `limit`, which must be short. False: not reached.
bool spin_until_reached(const SharedCounter& counter, std::uint32_t target,
                        std::chrono::nanoseconds limit) noexcept;

// Like spin_until_reached(), but for a counter of a rank that was last seen on this CPU: lets that
// rank run. Two ranks that take turns by sleeping are never ready at the same time, so the kernel
// has no reason to move one to another CPU.
bool yield_until_reached(const SharedCounter& counter, std::uint32_t target,
                         std::chrono::nanoseconds limit) noexcept;

// How long to spin before the next sleep. Spinning pays if the awaited rank runs on another CPU. If
// it does not, because other processes compute here, too, each spin that ends in a sleep halves the
// next one; now and then a whole one tests whether a CPU is free again. Pure.
class SpinBudget {
 public:
  explicit SpinBudget(std::chrono::nanoseconds most) : most_(most) {}

  std::chrono::nanoseconds limit() const noexcept {
    if (failures_ % kBetweenTrials == 0) return most_;
    return most_ / (1 << std::min(failures_, kHalvings));
  }
  void worked() noexcept { failures_ = 0; }
  void failed() noexcept { ++failures_; }

 private:
  static constexpr unsigned kHalvings = 7;
  static constexpr unsigned kBetweenTrials = 32;
  std::chrono::nanoseconds most_;
  unsigned failures_ = 0;
};

}  // namespace ddprun::worker_sdk
