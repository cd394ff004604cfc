#include "worker_sdk/shm/shm_sync.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ddprun::worker_sdk {
namespace {

void pause_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::uint32_t* futex_word(std::atomic<std::uint32_t>& word) noexcept {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return reinterpret_cast<std::uint32_t*>(&word);
}

}  // namespace

// The sequentially consistent order of "set value, read sleepers" here and "count up sleepers, read
// value" below makes it impossible that both sides miss each other.
void publish(SharedCounter& counter, std::uint32_t value) noexcept {
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) wake_sleepers(counter);
}

void wake_sleepers(SharedCounter& counter) noexcept {
  ::syscall(SYS_futex, futex_word(counter.value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool sleep_until_reached(SharedCounter& counter, std::uint32_t target,
                         std::chrono::nanoseconds limit) noexcept {
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  if (!has_reached(seen, target) && limit.count() > 0) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec relative{static_cast<time_t>(seconds.count()),
                            static_cast<long>((limit - seconds).count())};
    // Not the private kind: the waker may be in another process.
    ::syscall(SYS_futex, futex_word(counter.value), FUTEX_WAIT, seen, &relative, nullptr, 0);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return has_reached(counter.value.load(std::memory_order_acquire), target);
}

bool yield_until_reached(const SharedCounter& counter, std::uint32_t target,
                         std::chrono::nanoseconds limit) noexcept {
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    ::sched_yield();
    if (has_reached(counter.value.load(std::memory_order_acquire), target)) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

bool spin_until_reached(const SharedCounter& counter, std::uint32_t target,
                        std::chrono::nanoseconds limit) noexcept {
  constexpr int kPollsBetweenClockReadings = 64;
  const auto reached = [&] {
    return has_reached(counter.value.load(std::memory_order_acquire), target);
  };
  if (reached()) return true;
  if (limit.count() <= 0) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPollsBetweenClockReadings; ++i) {
      if (reached()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace ddprun::worker_sdk
