#pragma once
// Sums of gradients whose bits do not depend on the order of addition: fixed point in 64 bits. Each
// gradient is rounded to a multiple of one unit, the same for all shards, and integers add in any
// order, by any library, to the same sum. After J. Demmel and H. D. Nguyen, "Fast Reproducible
// Floating-Point Summation" (ARITH 2013), with integers in place of a pre-rounded f64.
//
// The unit depends on an exponent of the tensor, known before its gradients are: that of the last
// step, with room for it to grow by 2^kHeadroom. How large the gradients really were is counted in
// a tail that is summed with them, so that all ranks decide alike: the sum is good, or the step is
// to run again with a larger exponent.
//
//   for each shard:  largest = add_exact(sums, gradients, n, exponent)
//                    count_class(tail, class_of(largest))
//   all ranks:       all_reduce(sum, i64) of sums and tail
//                    judge(exponent, highest_class(tail)), then finish_exact(sums, gradients, ...)
//
// Pure. An element that is less than 2^-(52 - kHeadroom) of its tensor's largest counts as zero.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ddprun::worker_sdk {

// An exponent E stands for gradients with magnitudes below 2^E.
constexpr int kNoExponent = -1000;  // Not known: the first step runs again.
constexpr int kLeastExponent = -126, kMostExponent = 128;
constexpr int kHeadroom = 8;
constexpr int kBits = 51;  // Bits of an addend, without its sign.
constexpr int kExactShardsMax = 2048;

// 0: all are zeros. Then one per exponent of f32, denormals first; the last: infinite or NaN.
constexpr int kClasses = 257;
constexpr int kNotFiniteClass = kClasses - 1;

// Added to a bucket of 64-bit integers for each of its tensors: a 16-bit counter per class, four in
// a word.
using ClassTail = std::array<std::int64_t, (kClasses + 3) / 4>;

// Adds `gradients` to `sums`, which have as many elements. Returns the bits of the largest
// magnitude; infinities are larger than all numbers, and NaNs larger still.
std::uint32_t add_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept;
// Like add_exact(), for the first shard: replaces the content of `sums`.
std::uint32_t set_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept;
// Like add_exact(), for a single shard: keeps the gradients as they are. A reader of several ranks'
// gradients can convert them while it reads; until then they need half the memory.
std::uint32_t keep_exact(std::span<float> kept, std::span<const float> gradients) noexcept;
// The result of keep_exact() for gradients that are in place already.
std::uint32_t largest_of(std::span<const float> gradients) noexcept;
// Makes sums of what keep_exact() kept, which may lie behind them in the second half of one array:
// they are converted from the first element on. Adds `gradients`, unless they are empty, and
// returns the same as add_exact().
std::uint32_t expand_exact(std::span<std::int64_t> sums, const float* kept,
                           std::span<const float> gradients, int exponent) noexcept;
// result[i] from sources[0][i] + sources[1][i] + ..., each kept by one rank: the same as
// finish_exact() of their sums. `result` may be one of the sources.
void combine_exact(std::span<const float* const> sources, std::span<float> result, int exponent,
                   double divisor) noexcept;
// The sums as floats, once they contain all shards, divided by `divisor` if that is not 1.
// `gradients` may begin where `sums` do, or before.
void finish_exact(std::span<const std::int64_t> sums, std::span<float> gradients, int exponent,
                  double divisor = 1) noexcept;

// Plain sums, for comparison and for callers that need no exact ones.
void add_plain(std::span<float> sums, std::span<const float> gradients) noexcept;
// Like finish_exact(); returns the bits of the largest magnitude, before the division.
std::uint32_t finish_plain(std::span<const float> sums, std::span<float> gradients,
                           float divisor) noexcept;

int class_of(std::uint32_t largest) noexcept;
int exponent_of(int gradient_class) noexcept;  // For classes 1 .. kNotFiniteClass - 1.
// At most kExactShardsMax shards may count into one tail, also if it is added up in parts.
void count_class(ClassTail& tail, int gradient_class) noexcept;
int highest_class(const ClassTail& tail) noexcept;

struct Judgement {
  enum class Kind {
    kGood,       // finish_exact() gives the sums.
    kOver,       // Some gradient was too large for the exponent: the step runs again.
    kNotFinite,  // Some gradient is infinite or NaN; so are all sums of the tensor.
  } kind = Kind::kGood;
  int next = kNoExponent;  // The exponent from now on.
};
Judgement judge(int exponent, int highest) noexcept;

}  // namespace ddprun::worker_sdk
