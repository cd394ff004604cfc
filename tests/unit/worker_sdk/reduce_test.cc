#include "worker_sdk/transport/reduce.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "tests/support/elements.h"

namespace ddprun::worker_sdk {
namespace {

// Written from the definition of the format: sign, 5 bits of exponent, 10 of mantissa.
double f16_by_definition(std::uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST_CASE("Reduce: every f16 has the value that the format defines", "[reduce]") {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const double want = f16_by_definition(static_cast<std::uint16_t>(bits));
    const float got = f16_to_f32(static_cast<std::uint16_t>(bits));
    if (std::isnan(want)) {
      if (!std::isnan(got)) FAIL(bits);
    } else if (got != want || std::signbit(got) != std::signbit(want)) {
      FAIL(bits);
    }
  }
}

TEST_CASE("Reduce: every f16 survives the way through f32 and back", "[reduce]") {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const std::uint16_t back = f32_to_f16(f16_to_f32(half));
    const bool is_nan = (bits & 0x7fff) > 0x7c00;
    if (is_nan ? (back & 0x7fff) <= 0x7c00 : back != half) FAIL(bits);
  }
}

// Of the two neighbours, the nearer; of two equally near, the even one.
TEST_CASE("Reduce: f32 is rounded to the nearest f16, ties to even", "[reduce]") {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = f16_to_f32(static_cast<std::uint16_t>(bits));
    const float high = f16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // Exact in f32.
    if (f32_to_f16(middle) != (bits % 2 == 0 ? bits : bits + 1)) FAIL(bits);
    if (f32_to_f16(std::nextafter(middle, 0.0f)) != bits) FAIL(bits);
    if (f32_to_f16(std::nextafter(middle, INFINITY)) != bits + 1) FAIL(bits);
  }
  CHECK(f32_to_f16(65519.0f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
  CHECK(f32_to_f16(1e30f) == 0x7c00);
  CHECK(f32_to_f16(-INFINITY) == 0xfc00);
  CHECK(f32_to_f16(1e-30f) == 0);
}

TEST_CASE("Reduce: f32 is rounded to the nearest bf16, ties to even", "[reduce]") {
  for (std::uint32_t bits = 0; bits < 0x7f7f; bits += 7) {
    const float low = bf16_to_f32(static_cast<std::uint16_t>(bits));
    const auto middle = std::bit_cast<float>(bits << 16 | 0x8000u);
    if (f32_to_bf16(low) != bits) FAIL(bits);
    if (f32_to_bf16(middle) != (bits % 2 == 0 ? bits : bits + 1)) FAIL(bits);
    if (f32_to_bf16(std::nextafter(middle, 0.0f)) != bits) FAIL(bits);
    if (f32_to_bf16(std::nextafter(middle, INFINITY)) != bits + 1) FAIL(bits);
  }
  CHECK(f32_to_bf16(INFINITY) == 0x7f80);
  CHECK(f32_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("Reduce: any number of sources of every type and reduction", "[reduce]") {
  for (const DataType type : test::kEveryType) {
    for (const ReduceOp op : test::kEveryOp) {
      if (!is_defined(type, op)) continue;
      for (int n = 1; n <= 5; ++n) {
        for (const std::size_t count : {0, 1, 15, 2047, 2048, 2049, 5000}) {
          std::vector<std::vector<std::byte>> inputs;
          std::vector<const void*> arrays;
          for (int r = 0; r < n; ++r) inputs.push_back(test::inputs(type, r, count));
          for (const auto& array : inputs) arrays.push_back(array.data());
          // In place of the last source: the first must not be special.
          reduce(type, op, inputs.back().data(), {arrays.data(), n}, count);
          INFO(name_of(type) << " " << name_of(op) << " " << n << " x " << count);
          CHECK(inputs.back() == test::expected(type, op, n, count));
        }
      }
    }
  }
}

TEST_CASE("Reduce: booleans are true or not, whatever their bits", "[reduce]") {
  const unsigned char a[] = {0, 0, 2, 2}, b[] = {0, 1, 0, 1};
  const void* arrays[] = {a, b};
  const auto reduced = [&](ReduceOp op) {
    std::vector<int> result(4);
    unsigned char out[4];
    reduce(DataType::boolean, op, out, {arrays, 2}, 4);
    std::copy(std::begin(out), std::end(out), result.begin());
    return result;
  };
  for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::bor}) {
    CHECK(reduced(op) == std::vector<int>{0, 1, 1, 1});
  }
  for (const auto op : {ReduceOp::prod, ReduceOp::min, ReduceOp::band}) {
    CHECK(reduced(op) == std::vector<int>{0, 0, 0, 1});
  }
  CHECK(reduced(ReduceOp::bxor) == std::vector<int>{0, 1, 1, 0});
}

TEST_CASE("Reduce: f16 is added in f32 and rounded once", "[reduce]") {
  // In f16, 2048 + 1 is 2048 again; in f32 the ones add up.
  std::vector<std::uint16_t> first(1, f32_to_f16(2048)), one(1, f32_to_f16(1));
  const void* arrays[] = {first.data(), one.data(), one.data(), one.data(), one.data()};
  std::uint16_t sum = 0;
  reduce(DataType::f16, ReduceOp::sum, &sum, {arrays, 5}, 1);
  CHECK(f16_to_f32(sum) == 2052);
  // The sum is above the largest f16, the average is not.
  std::vector<std::uint16_t> large(1, f32_to_f16(60000));
  const void* larges[] = {large.data(), large.data(), large.data()};
  reduce(DataType::f16, ReduceOp::avg, &sum, {larges, 3}, 1);
  CHECK(f16_to_f32(sum) == f16_to_f32(f32_to_f16(60000)));
}

TEST_CASE("Reduce: a NaN of any source reaches min and max", "[reduce]") {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (int where = 0; where < 3; ++where) {
      float values[3] = {1, 2, 3};
      values[where] = NAN;
      const void* arrays[] = {&values[0], &values[1], &values[2]};
      float result = 0;
      reduce(DataType::f32, op, &result, {arrays, 3}, 1);
      CHECK(std::isnan(result));
    }
  }
}

TEST_CASE("Reduce: integers wrap", "[reduce]") {
  const std::int32_t large = std::numeric_limits<std::int32_t>::max(), one = 1;
  const void* arrays[] = {&large, &one};
  std::int32_t result = 0;
  reduce(DataType::i32, ReduceOp::sum, &result, {arrays, 2}, 1);
  CHECK(result == std::numeric_limits<std::int32_t>::min());
  reduce(DataType::i32, ReduceOp::prod, &result, {(arrays[1] = &large, arrays), 2}, 1);
  CHECK(result == 1);
  const std::uint8_t byte = 200;
  const void* bytes[] = {&byte, &byte};
  std::uint8_t sum = 0;
  reduce(DataType::u8, ReduceOp::sum, &sum, {bytes, 2}, 1);
  CHECK(sum == 144);
}

TEST_CASE("Reduce: sums are made in the order of the sources", "[reduce]") {
  const float big = 1e8f, minus = -1e8f, one = 1;
  float result = 0;
  const void* cancels_first[] = {&big, &minus, &one};
  reduce(DataType::f32, ReduceOp::sum, &result, {cancels_first, 3}, 1);
  CHECK(result == 1);
  const void* cancels_last[] = {&one, &big, &minus};
  reduce(DataType::f32, ReduceOp::sum, &result, {cancels_last, 3}, 1);
  CHECK(result == 0);
}

TEST_CASE("Reduce: divide() divides every element", "[reduce]") {
  for (const DataType type : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16}) {
    auto bytes = test::inputs(type, 1, 1000);
    divide(type, bytes.data(), 1000, 2);
    for (std::size_t i = 0; i < 1000; ++i) {
      if (test::get(type, bytes, i) != test::input(1, i) / 2) FAIL(name_of(type) << i);
    }
  }
}

}  // namespace
}  // namespace ddprun::worker_sdk
