#pragma once
// Arrays, element types and reductions, used by every collective.

#include <cstddef>
#include <cstdint>

namespace ddprun {

enum class DataType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8 };
enum class ReduceOp : std::uint8_t { sum, avg, min, max, prod };

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

template <class T>
Buffer buffer(T* data, std::size_t count) noexcept {
  return {data, count, DataTypeOf<T>::value};
}

}  // namespace ddprun
