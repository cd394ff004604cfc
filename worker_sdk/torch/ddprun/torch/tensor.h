#pragma once
// Tensors as the SDK's buffers.

#include <torch/torch.h>
#include <torch/version.h>

#include <optional>
#include <string>

#include "ddprun/error.h"
#include "ddprun/types.h"

namespace ddprun::torch {

namespace detail {

// Empty for what has no name here, such as float8 and quantized types.
inline std::optional<DataType> known_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DataType::f32;
    case at::kDouble: return DataType::f64;
    case at::kHalf: return DataType::f16;
    case at::kBFloat16: return DataType::bf16;
    case at::kInt: return DataType::i32;
    case at::kLong: return DataType::i64;
    case at::kByte: return DataType::u8;
    case at::kChar: return DataType::i8;
    case at::kShort: return DataType::i16;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    case at::kUInt16: return DataType::u16;
    case at::kUInt32: return DataType::u32;
    case at::kUInt64: return DataType::u64;
#endif
    case at::kBool: return DataType::boolean;
    case at::kComplexFloat: return DataType::c64;
    case at::kComplexDouble: return DataType::c128;
    default: return {};
  }
}

}  // namespace detail

/// Throws Error(unsupported) that names a type which buffers cannot have.
inline DataType data_type_of(at::ScalarType type) {
  if (const auto known = detail::known_type(type)) return *known;
  throw Error(ErrorKind::unsupported, {.operation = "ddprun::torch"},
              std::string("tensors of type ") + c10::toString(type) + " cannot be communicated");
}

namespace detail {

inline Buffer memory_of(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) {
    throw Error(ErrorKind::bad_argument, {.operation = "ddprun::torch"},
                "the tensor is not contiguous");
  }
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
          data_type_of(tensor.scalar_type())};
}

// The view that arithmetic on gradients uses: pairs of numbers for complex ones.
inline at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

}  // namespace detail

/// The memory of a tensor, which must be contiguous and in host memory. Not owned. For tensors on a
/// GPU use buffer(group, tensor); for other strides and types, collectives.h.
inline Buffer buffer(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    throw Error(ErrorKind::bad_argument, {.operation = "ddprun::torch"},
                "a tensor is on " + tensor.device().str() +
                    ", not on cpu; ddprun::torch::buffer(group, tensor) takes those of the "
                    "backend nccl");
  }
  return detail::memory_of(tensor);
}

}  // namespace ddprun::torch
