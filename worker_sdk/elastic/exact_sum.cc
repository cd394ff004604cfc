// Compiled with -O3: the loops are written for the compiler's vectoriser.
#include "worker_sdk/elastic/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

// While one lives, its thread computes by IEEE 754: rounding to nearest, denormals kept. A program
// may have switched either off for its own speed (torch::set_flush_denormal).
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

constexpr std::size_t kBlock = 512;  // Elements that stay in the processor's nearest cache.
constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

double unit_of(int exponent) { return std::ldexp(1.0, exponent + kHeadroom - kBits); }

// A number within [2^52, 2^53) units, where the bits of a double count units. An addend is rounded
// to whole units, ties to even of a number that depends on the addend alone.
double anchor_of(int exponent) { return 0x1.8p52 * unit_of(exponent); }

// If no exponent is known, any value works because the step is repeated.
int usable(int exponent) { return exponent == kNoExponent ? 0 : exponent; }

double unit_of(int exponent, double divisor) {
  const double unit = unit_of(usable(exponent)) / divisor;
  return unit;
}

// The loops are compiled for two widths of vectors, and the processor decides which are taken. Both
// give the same bits.
template <bool kFirst>
[[gnu::always_inline]] inline std::uint32_t add_loop(std::int64_t* sums, const float* gradients,
                                                     std::size_t n, double anchor) {
  const auto zero = std::bit_cast<std::uint64_t>(anchor);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(gradients[i]) & kMagnitude;
    largest = std::max(largest, magnitude);
    const double sum = static_cast<double>(gradients[i]) + anchor;
    const std::uint64_t units = std::bit_cast<std::uint64_t>(sum) - zero;
    const std::uint64_t before = kFirst ? 0 : static_cast<std::uint64_t>(sums[i]);
    sums[i] = static_cast<std::int64_t>(before + units);
  }
  return largest;
}

// Vectors have no conversion from 64-bit integers below AVX-512: the halves become the mantissas of
// two doubles, both exact. Their sum is rounded once, like that conversion.
[[gnu::always_inline]] inline double double_of(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  const auto low =
      std::bit_cast<double>((bits & 0xffffffff) | std::bit_cast<std::uint64_t>(0x1p52));
  const auto high =
      std::bit_cast<double>((bits >> 32 ^ 0x80000000) | std::bit_cast<std::uint64_t>(0x1p84));
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

[[gnu::always_inline]] inline void finish_loop(const std::int64_t* sums, float* gradients,
                                               std::size_t n, double unit) {
  for (std::size_t i = 0; i < n; ++i) {
    gradients[i] = static_cast<float>(double_of(sums[i]) * unit);
  }
}

// Compares as integers, which no flag of the processor affects.
[[gnu::always_inline]] inline std::uint32_t keep_loop(float* kept, const float* gradients,
                                                      std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(gradients[i]);
    largest = std::max(largest, bits & kMagnitude);
    kept[i] = std::bit_cast<float>(bits);
  }
  return largest;
}

[[gnu::always_inline]] inline std::uint32_t scan_loop(const float* sums, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(sums[i]) & kMagnitude);
  }
  return largest;
}

struct Loops {
  std::uint32_t (*add)(std::int64_t*, const float*, std::size_t, double);
  std::uint32_t (*set)(std::int64_t*, const float*, std::size_t, double);
  void (*finish)(const std::int64_t*, float*, std::size_t, double);
  std::uint32_t (*keep)(float*, const float*, std::size_t);
  std::uint32_t (*scan)(const float*, std::size_t);
};

std::uint32_t add_any(std::int64_t* sums, const float* from, std::size_t n, double anchor) {
  return add_loop<false>(sums, from, n, anchor);
}
std::uint32_t set_any(std::int64_t* sums, const float* from, std::size_t n, double anchor) {
  return add_loop<true>(sums, from, n, anchor);
}
void finish_any(const std::int64_t* sums, float* to, std::size_t n, double unit) {
  finish_loop(sums, to, n, unit);
}
std::uint32_t keep_any(float* kept, const float* from, std::size_t n) {
  return keep_loop(kept, from, n);
}
std::uint32_t scan_any(const float* sums, std::size_t n) { return scan_loop(sums, n); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint32_t add_avx2(std::int64_t* sums, const float* from, std::size_t n,
                                               double anchor) {
  return add_loop<false>(sums, from, n, anchor);
}
[[gnu::target("avx2")]] std::uint32_t set_avx2(std::int64_t* sums, const float* from, std::size_t n,
                                               double anchor) {
  return add_loop<true>(sums, from, n, anchor);
}
[[gnu::target("avx2")]] void finish_avx2(const std::int64_t* sums, float* to, std::size_t n,
                                         double unit) {
  finish_loop(sums, to, n, unit);
}
[[gnu::target("avx2")]] std::uint32_t keep_avx2(float* kept, const float* from, std::size_t n) {
  return keep_loop(kept, from, n);
}
[[gnu::target("avx2")]] std::uint32_t scan_avx2(const float* sums, std::size_t n) {
  return scan_loop(sums, n);
}
#endif

Loops loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return {add_avx2, set_avx2, finish_avx2, keep_avx2, scan_avx2};
  }
#endif
  return {add_any, set_any, finish_any, keep_any, scan_any};
}

}  // namespace

std::uint32_t add_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const FloatMode ieee;
  return loops().add(sums.data(), gradients.data(), sums.size(), anchor_of(usable(exponent)));
}

std::uint32_t set_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const FloatMode ieee;
  return loops().set(sums.data(), gradients.data(), sums.size(), anchor_of(usable(exponent)));
}

void finish_exact(std::span<const std::int64_t> sums, std::span<float> gradients, int exponent,
                  double divisor) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const FloatMode ieee;
  const double unit = unit_of(exponent, divisor);
  const Loops loop = loops();
  std::array<std::int64_t, kBlock> copy;
  for (std::size_t at = 0; at < sums.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, sums.size() - at);
    std::memcpy(copy.data(), sums.data() + at, n * sizeof(std::int64_t));
    loop.finish(copy.data(), gradients.data() + at, n, unit);
  }
}

std::uint32_t keep_exact(std::span<float> kept, std::span<const float> gradients) noexcept {
  DDPRUN_ASSERT(kept.size() == gradients.size());
  return loops().keep(kept.data(), gradients.data(), kept.size());
}

std::uint32_t largest_of(std::span<const float> gradients) noexcept {
  return loops().scan(gradients.data(), gradients.size());
}

std::uint32_t expand_exact(std::span<std::int64_t> sums, const float* kept,
                           std::span<const float> gradients, int exponent) noexcept {
  DDPRUN_ASSERT(gradients.empty() || gradients.size() == sums.size());
  const FloatMode ieee;
  const double anchor = anchor_of(usable(exponent));
  const Loops loop = loops();
  std::uint32_t largest = 0;
  std::array<float, kBlock> copy;
  for (std::size_t at = 0; at < sums.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, sums.size() - at);
    std::memcpy(copy.data(), kept + at, n * sizeof(float));
    loop.set(sums.data() + at, copy.data(), n, anchor);
    if (gradients.empty()) continue;
    largest = std::max(largest, loop.add(sums.data() + at, gradients.data() + at, n, anchor));
  }
  return largest;
}

void combine_exact(std::span<const float* const> sources, std::span<float> result, int exponent,
                   double divisor) noexcept {
  DDPRUN_ASSERT(!sources.empty());
  const FloatMode ieee;
  const double anchor = anchor_of(usable(exponent)), unit = unit_of(exponent, divisor);
  const Loops loop = loops();
  std::array<std::int64_t, kBlock> sums;
  for (std::size_t at = 0; at < result.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, result.size() - at);
    loop.set(sums.data(), sources[0] + at, n, anchor);
    for (const float* source : sources.subspan(1)) loop.add(sums.data(), source + at, n, anchor);
    loop.finish(sums.data(), result.data() + at, n, unit);
  }
}

void add_plain(std::span<float> sums, std::span<const float> gradients) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[i];
}

std::uint32_t finish_plain(std::span<const float> sums, std::span<float> gradients,
                           float divisor) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const float factor = 1 / divisor;
  const bool as_they_are = factor == 1 && gradients.data() == sums.data();
  const Loops loop = loops();
  std::uint32_t largest = 0;
  for (std::size_t at = 0; at < sums.size(); at += kBlock) {
    const std::size_t end = std::min(at + kBlock, sums.size());
    largest = std::max(largest, loop.scan(sums.data() + at, end - at));
    if (as_they_are) continue;
    for (std::size_t i = at; i < end; ++i) gradients[i] = sums[i] * factor;
  }
  return largest;
}

int class_of(std::uint32_t largest) noexcept {
  DDPRUN_ASSERT((largest & ~kMagnitude) == 0);
  if (largest == 0) return 0;
  if (largest >= kInfinity) return kNotFiniteClass;
  return static_cast<int>(largest >> 23) + 1;
}

int exponent_of(int gradient_class) noexcept {
  DDPRUN_ASSERT(gradient_class > 0 && gradient_class < kNotFiniteClass);
  return std::max(kLeastExponent, gradient_class - 127);
}

void count_class(ClassTail& tail, int gradient_class) noexcept {
  DDPRUN_ASSERT(gradient_class >= 0 && gradient_class < kClasses);
  const auto at = static_cast<std::size_t>(gradient_class);
  const auto one = std::uint64_t{1} << 16 * (at % 4);
  tail[at / 4] = static_cast<std::int64_t>(static_cast<std::uint64_t>(tail[at / 4]) + one);
}

int highest_class(const ClassTail& tail) noexcept {
  for (int c = kClasses - 1; c > 0; --c) {
    const auto at = static_cast<std::size_t>(c);
    if ((static_cast<std::uint64_t>(tail[at / 4]) >> 16 * (at % 4) & 0xffff) != 0) return c;
  }
  return 0;
}

// A tensor without a gradient in a step, such as an expert that was not used, keeps its scale for a
// while: one octave less per step.
Judgement judge(int exponent, int highest) noexcept {
  DDPRUN_ASSERT(exponent == kNoExponent ||
                (exponent >= kLeastExponent && exponent <= kMostExponent));
  const int faded = exponent == kNoExponent ? exponent : std::max(kLeastExponent, exponent - 1);
  if (highest == 0) return {Judgement::Kind::kGood, faded};
  if (highest == kNotFiniteClass) return {Judgement::Kind::kNotFinite, exponent};
  const int needed = exponent_of(highest);
  const bool over = exponent == kNoExponent || needed > exponent + kHeadroom;
  return {over ? Judgement::Kind::kOver : Judgement::Kind::kGood, std::max(needed, faded)};
}

}  // namespace ddprun::worker_sdk
