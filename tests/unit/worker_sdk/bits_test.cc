// What the ranks of a job compute must have the same bits on every kind of processor, for they may
// be of several kinds, and a run may go on elsewhere. The hashes here were made on x86-64;
// deploy/cross.sh runs this test as aarch64. `bits_test -s` prints them.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <span>
#include <sstream>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/random_stream.h"
#include "tests/support/elements.h"
#include "worker_sdk/elastic/exact_sum.h"
#include "worker_sdk/training/gradient_math.h"
#include "worker_sdk/training/power_sgd_math.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

// FNV-1a, in hexadecimal.
class Hash {
 public:
  template <class T>
  Hash& of(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    for (const std::byte byte : bytes) {
      state_ = (state_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
    return *this;
  }
  template <class T>
  Hash& of(const std::vector<T>& values) {
    return of(std::span<const T>(values));
  }
  Hash& of(double value) { return of(std::span<const double>(&value, 1)); }
  std::string text() const {
    std::ostringstream text;
    text << std::hex << state_;
    return text.str();
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

// Numbers of many sizes and both signs, of which sums are rounded; no two arrays alike.
std::vector<float> gradients(std::uint32_t number, std::size_t count) {
  RandomStream random(42, 0, number);
  std::vector<float> values(count);
  for (float& value : values) {
    value = random.uniform() - 0.5F;
    value = std::ldexp(value, static_cast<int>(random() % 24) - 12);
  }
  return values;
}

constexpr std::size_t kCount = 1003;  // No multiple of a vector's length.

TEST_CASE("Bits: exact sums are the same on every processor", "[bits]") {
  std::vector<std::vector<float>> arrays;
  std::vector<const float*> sources;
  for (std::uint32_t i = 0; i < 5; ++i) arrays.push_back(gradients(i, kCount));
  for (const auto& array : arrays) sources.push_back(array.data());
  std::vector<std::int64_t> sums(kCount);
  std::uint32_t largest = set_exact(sums, arrays[0], 3);
  largest = std::max(largest, add_exact(sums, arrays[1], 3));
  std::vector<float> finished(kCount), combined(kCount);
  finish_exact(sums, finished, 3, 7);
  combine_exact(sources, combined, 4, 5);
  Hash hash;
  hash.of(sums).of(finished).of(combined).of(largest);
  CHECK(hash.text() == "a0fbcb4ce7a81562");
}

// Complex numbers are made of two parts each.
std::vector<std::byte> array_of(DataType type, std::uint32_t number) {
  const bool complex = type == DataType::c64 || type == DataType::c128;
  const DataType part = type == DataType::c64 ? DataType::f32 : complex ? DataType::f64 : type;
  const auto values = gradients(number, complex ? 2 * kCount : kCount);
  std::vector<std::byte> bytes(kCount * size_of(type));
  const bool whole = is_defined(type, ReduceOp::band);
  for (std::size_t i = 0; i < values.size(); ++i) {
    test::put(part, bytes, i, whole ? std::floor(std::fabs(values[i]) / 64) : values[i]);
  }
  return bytes;
}

TEST_CASE("Bits: reductions of every type are the same on every processor", "[bits]") {
  std::string hashes;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::max}) {
    Hash hash;
    for (const DataType type : test::kEveryType) {
      if (!is_defined(type, op)) continue;
      const auto a = array_of(type, 1), b = array_of(type, 2), c = array_of(type, 3);
      const void* sources[] = {a.data(), b.data(), c.data()};
      std::vector<std::byte> result(a.size());
      reduce(type, op, result.data(), {sources, 3}, kCount);
      hash.of(result);
    }
    hashes += (hashes.empty() ? "" : " ") + hash.text();
  }
  CHECK(hashes == "2350c55c71f724bd f49901f334cc5161 92c33b27ddf1229e e9b562af4ed5da");
}

TEST_CASE("Bits: conversions and scaling are the same on every processor", "[bits]") {
  Hash hash;
  auto values = gradients(1, kCount);
  for (const DataType half : {DataType::f16, DataType::bf16}) {
    std::vector<std::uint16_t> small(kCount);
    const Buffer from{values.data(), kCount, DataType::f32}, to{small.data(), kCount, half};
    convert(from, to);
    multiply(to, 0.3);
    hash.of(small);
    convert(to, from);
    multiply(from, 1.0 / 3);
    hash.of(values).of(sum_of_powers(from, 2)).of(sum_of_powers(to, 1));
  }
  CHECK(hash.text() == "48c2cc5042c3d236");
}

TEST_CASE("Bits: PowerSGD's factors are the same on every processor", "[bits]") {
  constexpr LowRankShape kShape{.rows = 37, .columns = 27, .rank = 3};
  std::vector<float> q(kShape.columns * kShape.rank), p(kShape.rows * kShape.rank);
  auto matrix = gradients(9, kShape.rows * kShape.columns);
  draw_normal(7, q.data(), q.size());
  Hash hash;
  hash.of(q);
  multiply(kShape, matrix.data(), q.data(), p.data());
  orthogonalize(p.data(), kShape.rows, kShape.rank, 1e-8);
  multiply_transposed(kShape, matrix.data(), p.data(), q.data());
  expand(kShape, p.data(), q.data(), matrix.data());
  CHECK(hash.of(p).of(q).of(matrix).text() == "e10e3218366f119e");
}

TEST_CASE("Bits: batches and random streams are the same on every processor", "[bits]") {
  Hash hash;
  const GlobalBatches batches({.sets = {{.length = 1000}}, .global_batch = 48, .shards = 6});
  for (std::int64_t step = 0; step < 40; ++step) {
    for (const Sample& sample : batches.shard(step, static_cast<int>(step % 6))) {
      hash.of(std::span<const std::int64_t>(&sample.index, 1));
    }
  }
  RandomStream random(1, 2, 3);
  for (int i = 0; i < 1000; ++i) hash.of(random.uniform());
  CHECK(hash.text() == "5774b210e542e9be");
}

}  // namespace
}  // namespace ddprun::worker_sdk
