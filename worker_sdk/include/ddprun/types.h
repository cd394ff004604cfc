#pragma once
// Arrays, element types and reductions, used by every collective.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddprun {

/// `boolean` is one byte, 0 or 1; c64 and c128 are complex numbers of two f32 and two f64. Elements
/// of other types can be sent as u8.
enum class DataType : std::uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i32,
  i64,
  u8,
  i8,
  i16,
  u16,
  u32,
  u64,
  boolean,
  c64,
  c128,
};

/// avg and premul_sum are not defined for integers and booleans; min and max not for complex
/// numbers; band, bor and bxor (of bits) for integers and booleans only. Of booleans, sum and max
/// are "or", prod and min are "and". On nccl: sum, avg, min, max and prod, for types that NCCL has.
enum class ReduceOp : std::uint8_t {
  sum,
  avg,
  min,
  max,
  prod,
  band,
  bor,
  bxor,
  premul_sum,  ///< Each rank's elements are multiplied by its CallOptions::factor, then summed.
};

std::size_t size_of(DataType type) noexcept;  ///< Bytes of one element.
const char* name_of(DataType type) noexcept;  ///< "f32", ...
const char* name_of(ReduceOp op) noexcept;    ///< "sum", ...

/// A contiguous array, in host memory or, on the backend nccl, in the memory of the rank's GPU. Not
/// owned: it must outlive the operations that use it.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  ///< Elements, not bytes.
  DataType type = DataType::f32;

  std::size_t bytes() const noexcept { return count * size_of(type); }
};

/// Arrays with a part for each rank: either one array with equal parts in the order of ranks, or a
/// separate array for each rank, which may have different counts if the operation allows.
struct PartsBuffer {
  PartsBuffer() = default;
  PartsBuffer(const Buffer& one) : whole(one) {}
  PartsBuffer(void* data, std::size_t count, DataType type) : whole{data, count, type} {}
  PartsBuffer(std::vector<Buffer> each) : parts(std::move(each)) {}

  bool is_apart() const noexcept { return !parts.empty(); }

  Buffer whole = {};               ///< If `parts` is empty.
  std::vector<Buffer> parts = {};  ///< By rank.
};

/// A queue of work on a GPU: a cudaStream_t; null is CUDA's default stream.
using Stream = void*;

template <class T>
struct DataTypeOf;  // Specialised for the element types of C++.
template <>
struct DataTypeOf<float> {
  static constexpr DataType value = DataType::f32;
};
template <>
struct DataTypeOf<double> {
  static constexpr DataType value = DataType::f64;
};
template <>
struct DataTypeOf<std::int32_t> {
  static constexpr DataType value = DataType::i32;
};
template <>
struct DataTypeOf<std::int64_t> {
  static constexpr DataType value = DataType::i64;
};
template <>
struct DataTypeOf<std::uint8_t> {
  static constexpr DataType value = DataType::u8;
};
template <>
struct DataTypeOf<std::int8_t> {
  static constexpr DataType value = DataType::i8;
};
template <>
struct DataTypeOf<std::int16_t> {
  static constexpr DataType value = DataType::i16;
};
template <>
struct DataTypeOf<std::uint16_t> {
  static constexpr DataType value = DataType::u16;
};
template <>
struct DataTypeOf<std::uint32_t> {
  static constexpr DataType value = DataType::u32;
};
template <>
struct DataTypeOf<std::uint64_t> {
  static constexpr DataType value = DataType::u64;
};
template <>
struct DataTypeOf<bool> {
  static constexpr DataType value = DataType::boolean;
};
template <>
struct DataTypeOf<std::complex<float>> {
  static constexpr DataType value = DataType::c64;
};
template <>
struct DataTypeOf<std::complex<double>> {
  static constexpr DataType value = DataType::c128;
};

template <class T>
Buffer buffer(T* data, std::size_t count) noexcept {
  return {data, count, DataTypeOf<T>::value};
}

}  // namespace ddprun
