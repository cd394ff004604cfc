#pragma once
// While one lives, its thread computes by IEEE 754: rounding to nearest, denormals kept. A program
// may have switched either off for its own speed (torch::set_flush_denormal). Pure.

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ddprun::worker_sdk {

class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kFlushAndRounding); }
  ~FloatMode() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushAndRounding = 0x8000 | 0x0040 | 0x6000;
  const unsigned before_;
#elif defined(__aarch64__)
  FloatMode() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(before_ & ~kFlushAndRounding);
  }
  ~FloatMode() { set(before_); }

 private:
  static constexpr std::uint64_t kFlushAndRounding = std::uint64_t{7} << 22 | 1;
  static void set(std::uint64_t mode) noexcept { asm volatile("msr fpcr, %0" ::"r"(mode)); }
  std::uint64_t before_;
#else
  FloatMode() = default;
#endif

 public:
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
};

}  // namespace ddprun::worker_sdk
