// Compiled with -O3: the loops are written for the compiler's vectoriser.
#include "worker_sdk/elastic/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/assert.h"
#include "worker_sdk/elastic/float_mode.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

double unit_of(int exponent) { return std::ldexp(1.0, exponent + kHeadroom - kBits); }

// A number within [2^52, 2^53) units, where the bits of a double count units: what is added to it
// is rounded to whole ones, ties to even of a number that depends on the addend alone.
double anchor_of(int exponent) { return 0x1.8p52 * unit_of(exponent); }

// Any exponent will do where none is known: the step runs again.
int usable(int exponent) { return exponent == kNoExponent ? 0 : exponent; }

}  // namespace

std::uint32_t add_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const FloatMode ieee;
  const double anchor = anchor_of(usable(exponent));
  const auto zero = std::bit_cast<std::uint64_t>(anchor);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(gradients[i]) & kMagnitude;
    largest = std::max(largest, magnitude);
    const double sum = static_cast<double>(gradients[i]) + anchor;
    const std::uint64_t units = std::bit_cast<std::uint64_t>(sum) - zero;
    sums[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[i]) + units);
  }
  return largest;
}

void finish_exact(std::span<const std::int64_t> sums, std::span<float> gradients,
                  int exponent) noexcept {
  DDPRUN_ASSERT(sums.size() == gradients.size());
  const FloatMode ieee;
  const double unit = unit_of(usable(exponent));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    gradients[i] = static_cast<float>(static_cast<double>(sums[i]) * unit);
  }
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

// A tensor that has no gradient for a step, as an expert that nobody asked, keeps its scale for a
// while: one octave less for each step.
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
