#pragma once
// Arrays, element types and reductions, used by every collective.

#include <complex>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

/// What the elements of a type are.
enum class TypeClass : std::uint8_t {
  floating,  ///< f32 and f64.
  half,      ///< f16 and bf16: computed in f32, and rounded.
  integer,
  boolean,
  complex,
};

/// What is known of a DataType.
struct TypeFacts {
  DataType type;
  TypeClass kind;
  std::uint8_t size;  ///< Bytes of one element.
  const char* name;
};

/// All types, in the order of DataType. The one table of them.
inline constexpr TypeFacts kDataTypes[] = {
    {DataType::f32, TypeClass::floating, 4, "f32"},
    {DataType::f64, TypeClass::floating, 8, "f64"},
    {DataType::f16, TypeClass::half, 2, "f16"},
    {DataType::bf16, TypeClass::half, 2, "bf16"},
    {DataType::i32, TypeClass::integer, 4, "i32"},
    {DataType::i64, TypeClass::integer, 8, "i64"},
    {DataType::u8, TypeClass::integer, 1, "u8"},
    {DataType::i8, TypeClass::integer, 1, "i8"},
    {DataType::i16, TypeClass::integer, 2, "i16"},
    {DataType::u16, TypeClass::integer, 2, "u16"},
    {DataType::u32, TypeClass::integer, 4, "u32"},
    {DataType::u64, TypeClass::integer, 8, "u64"},
    {DataType::boolean, TypeClass::boolean, 1, "bool"},
    {DataType::c64, TypeClass::complex, 8, "c64"},
    {DataType::c128, TypeClass::complex, 16, "c128"},
};

/// False: the number is not a DataType, as one from a file or another process may be.
constexpr bool is_known(DataType type) noexcept {
  return static_cast<std::size_t>(type) < std::size(kDataTypes);
}
/// Bytes of one element; 0 if the type is not known.
constexpr std::size_t size_of(DataType type) noexcept {
  return is_known(type) ? kDataTypes[static_cast<std::size_t>(type)].size : 0;
}
constexpr const char* name_of(DataType type) noexcept {  ///< "f32", ...
  return is_known(type) ? kDataTypes[static_cast<std::size_t>(type)].name : "unknown type";
}
constexpr bool is_of(DataType type, TypeClass kind) noexcept {
  return is_known(type) && kDataTypes[static_cast<std::size_t>(type)].kind == kind;
}
/// f32, f64, f16 and bf16: the types of parameters and gradients.
constexpr bool is_floating(DataType type) noexcept {
  return is_of(type, TypeClass::floating) || is_of(type, TypeClass::half);
}

/// Of booleans, sum and max are "or", prod and min are "and".
enum class ReduceOp : std::uint8_t {
  sum,
  avg,
  min,
  max,
  prod,
  band,
  bor,
  bxor,
  premul_sum,  ///< Each rank's elements times its CallOptions::factor, halves in f32; then summed.
};

const char* name_of(ReduceOp op) noexcept;  ///< "sum", ...

/// Whether `op` can reduce elements of `type`, as every backend but nccl does: avg and premul_sum
/// are not defined for integers and booleans, min and max not for complex numbers, band, bor and
/// bxor (of bits) for integers and booleans only. On nccl: sum, avg, min, max and prod, of all
/// types but i16, u16, bool, c64 and c128, which NCCL lacks.
constexpr bool is_defined(DataType type, ReduceOp op) noexcept {
  const bool whole = is_of(type, TypeClass::integer) || is_of(type, TypeClass::boolean);
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::prod: return is_known(type);
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return is_known(type) && !whole;
    case ReduceOp::min:
    case ReduceOp::max: return is_known(type) && !is_of(type, TypeClass::complex);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: return whole;
  }
  return false;
}

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
