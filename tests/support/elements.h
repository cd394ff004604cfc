#pragma once
// Arrays of any DataType as numbers, and a reduction that is as plain as can be, to compare with.

#include <cmath>
#include <complex>
#include <cstring>
#include <vector>

#include "ddprun/types.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::test {

// Those that every backend reduces, and all; boolean has arithmetic of its own, and so has its own
// tests.
constexpr DataType kAllTypes[] = {DataType::f32, DataType::f64, DataType::f16, DataType::bf16,
                                  DataType::i32, DataType::i64, DataType::u8};
constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                ReduceOp::prod};
constexpr DataType kEveryType[] = {DataType::f32, DataType::f64, DataType::f16, DataType::bf16,
                                   DataType::i32, DataType::i64, DataType::u8,  DataType::i8,
                                   DataType::i16, DataType::u16, DataType::u32, DataType::u64,
                                   DataType::c64, DataType::c128};
constexpr ReduceOp kEveryOp[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::min,
                                 ReduceOp::max, ReduceOp::prod, ReduceOp::band,
                                 ReduceOp::bor, ReduceOp::bxor, ReduceOp::premul_sum};

inline bool is_integer(DataType type) { return is_defined(type, ReduceOp::band); }
inline bool is_half(DataType type) { return is_of(type, TypeClass::half); }

template <class T>
void put_as(std::vector<std::byte>& bytes, std::size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}
template <class T>
T get_as(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

inline void put(DataType type, std::vector<std::byte>& bytes, std::size_t i, double value) {
  switch (type) {
    case DataType::f32: return put_as(bytes, i, static_cast<float>(value));
    case DataType::f64: return put_as(bytes, i, value);
    case DataType::f16: return put_as(bytes, i, worker_sdk::f32_to_f16(static_cast<float>(value)));
    case DataType::bf16:
      return put_as(bytes, i, worker_sdk::f32_to_bf16(static_cast<float>(value)));
    case DataType::i32: return put_as(bytes, i, static_cast<std::int32_t>(value));
    case DataType::i64: return put_as(bytes, i, static_cast<std::int64_t>(value));
    case DataType::boolean:
    case DataType::u8: return put_as(bytes, i, static_cast<std::uint8_t>(value));
    case DataType::i8: return put_as(bytes, i, static_cast<std::int8_t>(value));
    case DataType::i16: return put_as(bytes, i, static_cast<std::int16_t>(value));
    case DataType::u16: return put_as(bytes, i, static_cast<std::uint16_t>(value));
    case DataType::u32: return put_as(bytes, i, static_cast<std::uint32_t>(value));
    case DataType::u64: return put_as(bytes, i, static_cast<std::uint64_t>(value));
    case DataType::c64: return put_as(bytes, i, std::complex<float>(static_cast<float>(value)));
    case DataType::c128: return put_as(bytes, i, std::complex<double>(value));
  }
}

inline double get(DataType type, const std::vector<std::byte>& bytes, std::size_t i) {
  switch (type) {
    case DataType::f32: return get_as<float>(bytes, i);
    case DataType::f64: return get_as<double>(bytes, i);
    case DataType::f16: return worker_sdk::f16_to_f32(get_as<std::uint16_t>(bytes, i));
    case DataType::bf16: return worker_sdk::bf16_to_f32(get_as<std::uint16_t>(bytes, i));
    case DataType::i32: return get_as<std::int32_t>(bytes, i);
    case DataType::i64: return static_cast<double>(get_as<std::int64_t>(bytes, i));
    case DataType::boolean:
    case DataType::u8: return get_as<std::uint8_t>(bytes, i);
    case DataType::i8: return get_as<std::int8_t>(bytes, i);
    case DataType::i16: return get_as<std::int16_t>(bytes, i);
    case DataType::u16: return get_as<std::uint16_t>(bytes, i);
    case DataType::u32: return get_as<std::uint32_t>(bytes, i);
    case DataType::u64: return static_cast<double>(get_as<std::uint64_t>(bytes, i));
    case DataType::c64: return get_as<std::complex<float>>(bytes, i).real();
    case DataType::c128: return get_as<std::complex<double>>(bytes, i).real();
  }
  return 0;
}

// Element i of rank r's input: 1, 2 or 3, so that sums and products of five ranks are exact in
// every type.
inline double input(int rank, std::size_t i) {
  return static_cast<double>(1 + (static_cast<std::size_t>(rank) * 7 + i * 5 + i / 11) % 3);
}

inline std::vector<std::byte> inputs(DataType type, int rank, std::size_t count) {
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) put(type, bytes, i, input(rank, i));
  return bytes;
}

inline int bits(double value) { return static_cast<int>(value); }

// Of what part `part` of the ranks' inputs holds.
inline double reduced(ReduceOp op, int ranks, std::size_t i, int part = 0) {
  double result = input(part, i);
  for (int r = 1; r < ranks; ++r) {
    const double value = input(r + part, i);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::premul_sum:
      case ReduceOp::avg: result += value; break;
      case ReduceOp::min: result = std::fmin(result, value); break;
      case ReduceOp::max: result = std::fmax(result, value); break;
      case ReduceOp::prod: result *= value; break;
      case ReduceOp::band: result = bits(result) & bits(value); break;
      case ReduceOp::bor: result = bits(result) | bits(value); break;
      case ReduceOp::bxor: result = bits(result) ^ bits(value); break;
    }
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

// What all_reduce must return, rounded once.
inline std::vector<std::byte> expected(DataType type, ReduceOp op, int ranks, std::size_t count) {
  std::vector<std::byte> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) put(type, bytes, i, reduced(op, ranks, i));
  return bytes;
}

}  // namespace ddprun::test
