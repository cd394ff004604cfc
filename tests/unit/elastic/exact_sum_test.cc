#include "worker_sdk/elastic/exact_sum.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ddprun/elastic/random_stream.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ddprun::worker_sdk {
namespace {

using Floats = std::vector<float>;
using Shards = std::vector<Floats>;

std::vector<std::uint32_t> bits_of(const Floats& floats) {
  std::vector<std::uint32_t> bits;
  for (const float x : floats) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

enum class Scale { kGradients, kWide, kTies };

// `wide`: 1e-30 to 1e30, denormals, both zeros; `ties`: few bits, so that sums lie between floats.
float some_number(RandomStream& random, Scale scale) {
  const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
  switch (scale) {
    case Scale::kGradients: return sign * random.uniform() * std::exp2(-12.0f * random.uniform());
    case Scale::kTies:
      return sign * std::ldexp(static_cast<float>(random() % 8), -static_cast<int>(random() % 26));
    case Scale::kWide: break;
  }
  const auto choice = random() % 16;
  if (choice == 0) return sign * 0.0f;
  if (choice == 1) return sign * std::numeric_limits<float>::denorm_min() * 77;
  return sign * std::pow(10.0f, 60.0f * random.uniform() - 30.0f);
}

Shards some_shards(std::uint64_t seed, int shards, std::size_t n, Scale scale) {
  RandomStream random(seed, static_cast<std::uint64_t>(shards), static_cast<std::uint32_t>(scale));
  Shards all(static_cast<std::size_t>(shards), Floats(n));
  for (Floats& shard : all) {
    for (float& x : shard) x = some_number(random, scale);
  }
  return all;
}

int exponent_for(const Shards& shards) {
  std::uint32_t largest = 0;
  for (const Floats& shard : shards) {
    std::vector<std::int64_t> sums(shard.size());
    largest = std::max(largest, add_exact(sums, shard, 0));
  }
  return exponent_of(class_of(largest));
}

// Which rank has which shard, in which order it adds them, and in which order the ranks' sums are
// merged.
template <class Sum, class Add>
std::vector<Sum> in_some_order(const Shards& shards, RandomStream& random, const Add& add) {
  const std::size_t ranks = 1 + random() % 8, n = shards.front().size();
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<Sum>> partial(ranks, std::vector<Sum>(n));
  for (const std::size_t s : order) add(partial[random() % ranks], shards[s]);
  std::vector<Sum> total = partial.back();
  partial.pop_back();
  std::shuffle(partial.begin(), partial.end(), random);
  for (const auto& part : partial) {
    for (std::size_t i = 0; i < n; ++i) {
      if constexpr (std::is_integral_v<Sum>) {
        total[i] = static_cast<Sum>(static_cast<std::uint64_t>(total[i]) +
                                    static_cast<std::uint64_t>(part[i]));
      } else {
        total[i] += part[i];
      }
    }
  }
  return total;
}

Floats exact_sums(const Shards& shards, RandomStream& random, int exponent) {
  const auto sums = in_some_order<std::int64_t>(
      shards, random,
      [&](std::vector<std::int64_t>& to, const Floats& shard) { add_exact(to, shard, exponent); });
  Floats result(sums.size());
  finish_exact(sums, result, exponent);
  return result;
}

TEST_CASE("Exact sums: no order of adding and no number of ranks changes a bit", "[elastic]") {
  bool floats_differ = false;
  for (const Scale scale : {Scale::kGradients, Scale::kWide, Scale::kTies}) {
    for (const int count : {1, 2, 8, 64, 500}) {
      const Shards shards = some_shards(3, count, 97, scale);
      const int exponent = exponent_for(shards);
      RandomStream random(17, static_cast<std::uint64_t>(count));
      const auto expected = bits_of(exact_sums(shards, random, exponent));
      Floats plain;
      for (int order = 0; order < 12; ++order) {
        INFO("scale " << static_cast<int>(scale) << ", shards " << count);
        CHECK(bits_of(exact_sums(shards, random, exponent)) == expected);
        const auto sums = in_some_order<float>(shards, random, [](Floats& to, const Floats& shard) {
          std::transform(to.begin(), to.end(), shard.begin(), to.begin(), std::plus<>());
        });
        floats_differ = floats_differ || (!plain.empty() && bits_of(plain) != bits_of(sums));
        plain = sums;
      }
    }
  }
  CHECK(floats_differ);  // Else these numbers would show nothing.
}

// |error| <= shards * unit / 2, and the last rounding.
TEST_CASE("Exact sums: they are as near to the true sum as the unit allows", "[elastic]") {
  for (const int count : {1, 8, 64}) {
    const Shards shards = some_shards(5, count, 301, Scale::kGradients);
    const int exponent = exponent_for(shards);
    RandomStream random(1);
    const Floats sums = exact_sums(shards, random, exponent);
    const long double unit = std::ldexp(1.0L, exponent + kHeadroom - kBits);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      long double truth = 0;
      for (const Floats& shard : shards) truth += shard[i];
      const long double bound = count * unit / 2 + std::abs(truth) * 0x1p-24L;
      CHECK(std::abs(static_cast<long double>(sums[i]) - truth) <= bound);
    }
  }
}

TEST_CASE("Exact sums: as many shards as there may be, of the largest size there may be",
          "[elastic]") {
  for (const int exponent : {-100, 0, 110}) {
    const float most = std::nextafter(std::ldexp(1.0f, exponent + kHeadroom), 0.0f);
    const Floats shard = {most, -most, most};
    std::vector<std::int64_t> sums(shard.size());
    for (int s = 0; s < kExactShardsMax; ++s) add_exact(sums, shard, exponent);
    Floats result(shard.size());
    finish_exact(sums, result, exponent);
    const auto expected = static_cast<float>(2048.0 * static_cast<double>(most));
    CHECK(result == Floats{expected, -expected, expected});
  }
}

TEST_CASE("Exact sums: zeros and denormals are numbers as any other", "[elastic]") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Floats shard = {0.0f, -0.0f, tiny, -tiny, 1000 * tiny};
  const int exponent = exponent_of(class_of(std::bit_cast<std::uint32_t>(1000 * tiny)));
  CHECK(exponent == kLeastExponent);
  std::vector<std::int64_t> sums(shard.size());
  for (int s = 0; s < 3; ++s) add_exact(sums, shard, exponent);
  Floats result(shard.size());
  finish_exact(sums, result, exponent);
  CHECK(bits_of(result) == bits_of({0, 0, 3 * tiny, -3 * tiny, 3000 * tiny}));
}

#if defined(__x86_64__)
TEST_CASE("Exact sums: a program that flushes denormals, or rounds up, gets the same bits",
          "[elastic]") {
  const Shards shards = some_shards(9, 16, 200, Scale::kWide);
  const int exponent = exponent_for(shards);
  RandomStream random(2);
  const auto expected = bits_of(exact_sums(shards, random, exponent));
  const unsigned before = _mm_getcsr();
  for (const unsigned mode : {0x8040U, 0x4000U}) {
    _mm_setcsr(before | mode);
    const auto sums = bits_of(exact_sums(shards, random, exponent));
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK(sums == expected);
    CHECK((after & 0xe040U) == ((before | mode) & 0xe040U));
  }
}
#endif

TEST_CASE("Exact sums: the tail tells the largest gradient of all shards", "[elastic]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    float gradient;
    int gradient_class;
    int exponent;
  } cases[] = {{0.0f, 0, 0},
               {-0.0f, 0, 0},
               {std::numeric_limits<float>::denorm_min(), 1, kLeastExponent},
               {std::numeric_limits<float>::min(), 2, -125},
               {1.0f, 128, 1},
               {-1.5f, 128, 1},
               {2.0f, 129, 2},
               {std::numeric_limits<float>::max(), 255, kMostExponent},
               {-infinity, kNotFiniteClass, 0},
               {std::nanf(""), kNotFiniteClass, 0}};
  for (const auto& c : cases) {
    INFO(c.gradient);
    std::vector<std::int64_t> sums(2);
    const int found = class_of(add_exact(sums, Floats{0, c.gradient}, 3));
    CHECK(found == c.gradient_class);
    if (found == 0 || found == kNotFiniteClass) continue;
    CHECK(exponent_of(found) == c.exponent);
    CHECK(std::abs(static_cast<double>(c.gradient)) < std::ldexp(1.0, c.exponent));
  }
  ClassTail total{};
  for (int s = 0; s < kExactShardsMax; ++s) {
    ClassTail tail{};
    count_class(tail, s == 700 ? 131 : s % 130);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += tail[i];
  }
  CHECK(highest_class(total) == 131);
  CHECK(highest_class(ClassTail{}) == 0);
  for (int c = 0; c < kClasses; ++c) {
    ClassTail tail{};
    for (int s = 0; s < kExactShardsMax; ++s) count_class(tail, c);
    CHECK(highest_class(tail) == c);
  }
}

std::string text_of(int exponent, int highest) {
  const Judgement judgement = judge(exponent, highest);
  const char* kinds[] = {"good", "over", "not finite"};
  return std::string(kinds[static_cast<int>(judgement.kind)]) + ", " +
         std::to_string(judgement.next);
}

TEST_CASE("Exact sums: what is too large for its exponent runs again with a larger one",
          "[elastic]") {
  constexpr int kOne = 128;  // The class of gradients below 2.
  CHECK(text_of(kNoExponent, kOne) == "over, 1");
  CHECK(text_of(kNoExponent, 0) == "good, -1000");
  CHECK(text_of(1, kOne) == "good, 1");
  CHECK(text_of(1, kOne + 8) == "good, 9");
  CHECK(text_of(1, kOne + 9) == "over, 10");
  CHECK(text_of(5, kOne) == "good, 4");
  CHECK(text_of(5, 0) == "good, 4");
  CHECK(text_of(kLeastExponent, 0) == "good, -126");
  CHECK(text_of(5, kNotFiniteClass) == "not finite, 5");
  for (int highest = 1; highest < kNotFiniteClass; ++highest) {
    const Judgement first = judge(kNoExponent, highest);
    CHECK(judge(first.next, highest).kind == Judgement::Kind::kGood);  // Never over twice.
  }
}

// The rule is part of what a run computes: it may change with its name only.
TEST_CASE("Exact sums: their bits are the same for ever", "[elastic]") {
  RandomStream random(3);
  Shards shards(8, Floats(4));
  for (Floats& shard : shards) {
    for (float& x : shard) x = random.uniform() - 0.5f;
  }
  CHECK(bits_of(exact_sums(shards, random, exponent_for(shards))) ==
        std::vector<std::uint32_t>{0x3f9d58bc, 0xbf8b2cde, 0x3e5a0988, 0x3f3d517a});
}

}  // namespace
}  // namespace ddprun::worker_sdk
