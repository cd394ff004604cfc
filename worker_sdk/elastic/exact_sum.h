#pragma once
// Sums of gradients whose bits do not depend on who added what first: fixed point in 64 bits. Each
// gradient is rounded to a multiple of one unit, the same for all shards, and integers add in any
// order, by any library, to the same sum. After J. Demmel and H. D. Nguyen, "Fast Reproducible
// Floating-Point Summation" (ARITH 2013), with integers in place of a pre-rounded f64.
//
// The unit hangs on an exponent of the tensor, known before its gradients are: that of the last
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

// An exponent E stands for gradients whose magnitude is below 2^E.
constexpr int kNoExponent = -1000;  // Nothing is known: the first step runs again.
constexpr int kLeastExponent = -126, kMostExponent = 128;
constexpr int kHeadroom = 8;
constexpr int kBits = 51;  // Of an addend, and its sign.
constexpr int kExactShardsMax = 2048;

// 0: all are zeros. Then one for each exponent of f32, denormals first; the last: infinite or no
// number.
constexpr int kClasses = 257;
constexpr int kNotFiniteClass = kClasses - 1;

// What is added to a bucket of 64-bit integers for each of its tensors: a counter of 16 bits for
// each class, four in a word.
using ClassTail = std::array<std::int64_t, (kClasses + 3) / 4>;

// Adds `gradients` to `sums`, elements alike in number. Returns the bits of the largest magnitude;
// infinite ones are larger than all numbers, and what is no number larger still.
std::uint32_t add_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept;
// The same for the first shard: it replaces what `sums` holds.
std::uint32_t set_exact(std::span<std::int64_t> sums, std::span<const float> gradients,
                        int exponent) noexcept;
// For a single shard: keeps the gradients as they are, and returns the same. A reader of several
// ranks' gradients can convert them while it reads; until then they need half the memory.
std::uint32_t keep_exact(std::span<float> kept, std::span<const float> gradients) noexcept;
// What that returns for gradients which are there already.
std::uint32_t largest_of(std::span<const float> gradients) noexcept;
// Makes sums of what keep_exact() kept, which may lie behind them in the second half of one array:
// it begins with the first. Adds `gradients`, unless they are empty, and returns what add_exact()
// does.
std::uint32_t expand_exact(std::span<std::int64_t> sums, const float* kept,
                           std::span<const float> gradients, int exponent) noexcept;
// result[i] from sources[0][i] + sources[1][i] + ..., each kept by one rank: what finish_exact()
// makes of their sums. `result` may be one of the sources.
void combine_exact(std::span<const float* const> sources, std::span<float> result, int exponent,
                   double divisor) noexcept;
// The sums as floats, once all shards are in them, divided by `divisor` where that is not 1.
// `gradients` may begin where `sums` do, or before.
void finish_exact(std::span<const std::int64_t> sums, std::span<float> gradients, int exponent,
                  double divisor = 1) noexcept;

// Plain sums, for comparison and for who needs none of this.
void add_plain(std::span<float> sums, std::span<const float> gradients) noexcept;
// As finish_exact(); returns the bits of the largest magnitude, before the division.
std::uint32_t finish_plain(std::span<const float> sums, std::span<float> gradients,
                           float divisor) noexcept;

int class_of(std::uint32_t largest) noexcept;
int exponent_of(int gradient_class) noexcept;  // Of 1 .. kNotFiniteClass - 1.
// At most kExactShardsMax shards count into one tail, in whatever parts it is added up.
void count_class(ClassTail& tail, int gradient_class) noexcept;
int highest_class(const ClassTail& tail) noexcept;

struct Judgement {
  enum class Kind {
    kGood,       // finish_exact() gives the sums.
    kOver,       // Some gradient was too large for the exponent: the step runs again.
    kNotFinite,  // Some gradient is infinite or no number; so are all sums of the tensor.
  } kind = Kind::kGood;
  int next = kNoExponent;  // The exponent from now on.
};
Judgement judge(int exponent, int highest) noexcept;

}  // namespace ddprun::worker_sdk
