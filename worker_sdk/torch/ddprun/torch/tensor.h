#pragma once
// Tensors as the SDK's buffers, the device of a group's tensors, and libtorch's streams for the
// SDK. On the backend nccl device and streams belong to a GPU; on other backends the device is
// "cpu" and streams are ignored. And the parameters of a module. Included through ddprun/torch.h.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <torch/version.h>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/process_group.h"
#include "ddprun/types.h"

// A libtorch for CUDA brings the first, the toolkit the other.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>
#define DDPRUN_TORCH_CUDA 1
#else
#define DDPRUN_TORCH_CUDA 0
#endif

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

/// The device of tensors for the group's operations: such as "cuda:1" on nccl, else "cpu".
inline at::Device device_of(const ProcessGroup& group) {
  if (group.device() < 0) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.device()));
}

namespace detail {

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Makes later work in `waits` run after all present work in `first`.
inline void put_behind(const c10::Stream& first, const c10::Stream& waits) {
  if (first == waits) return;
  c10::Event event(first.device_type());
  event.record(first);
  event.block(waits);
}

inline Stream native_stream([[maybe_unused]] const c10::Stream& stream) {
#if DDPRUN_TORCH_CUDA
  return c10::cuda::CUDAStream(stream).stream();
#else
  throw Error(ErrorKind::unsupported, {.operation = "ddprun::torch"},
              "the backend is nccl, but this program was built against a libtorch without CUDA");
#endif
}

// Empty, or the reason why the group's operations cannot use the tensor.
inline std::string objection(const ProcessGroup& group, const at::Tensor& tensor) {
  const at::Device wanted = device_of(group);
  if (tensor.device() == wanted) return {};
  return "is on " + tensor.device().str() + ", but the arrays of the backend " + group.backend() +
         " are on " + wanted.str();
}

inline void require_device(const ProcessGroup& group, const std::string& name,
                           const at::Tensor& parameter) {
  const std::string wrong = objection(group, parameter);
  if (wrong.empty()) return;
  throw Error(ErrorKind::bad_argument,
              {.rank = group.rank(), .operation = "DistributedDataParallel"},
              "parameter " + name + " " + wrong +
                  "; move the module with module->to(ddprun::torch::device_of(group))");
}

}  // namespace detail

/// Selects libtorch's current stream for all later operations of the group that name no stream. The
/// classes of this library call it themselves.
inline void use_current_stream(ProcessGroup& group) {
  if (group.device() < 0) return;
  group.use_stream(detail::native_stream(detail::current_stream(device_of(group))));
}

/// The memory of a contiguous tensor for an operation of `group`, on its GPU on nccl, else in host
/// memory. Throws Error if the tensor is elsewhere. On nccl call use_current_stream() before the
/// operation.
inline Buffer buffer(const ProcessGroup& group, const at::Tensor& tensor) {
  const std::string objection = detail::objection(group, tensor);
  if (!objection.empty()) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "ddprun::torch"},
                "a tensor " + objection);
  }
  return detail::memory_of(tensor);
}

// A module's parameters without duplicates, and the parameters that a wrapper trains, checked for
// changes that the wrapper does not support.

namespace detail {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Keeps the first name of each tensor.
template <class Items>
Named each_once(const Items& items) {
  Named result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : items) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

inline std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& t : tensors) {
    if (seen.insert(t.unsafeGetTensorImpl()).second) result.push_back(t);
  }
  return result;
}

// The parameters that a wrapper trains, by reference, so that later changes are visible.
class TrainedParameters {
 public:
  TrainedParameters(const ProcessGroup& group, const ::torch::nn::Module& module)
      : rank_(group.rank()) {
    for (auto& [name, tensor] : each_once(module.named_parameters())) {
      if (!tensor.requires_grad()) {
        frozen_.emplace_back(name, tensor);
        continue;
      }
      require_device(group, name, tensor);
      taken_as_.push_back(describe(tensor));
      tensors_.push_back(tensor);
      names_.push_back(name);
    }
  }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const std::string& name(std::size_t i) const { return names_[i]; }

  Buffer memory(std::size_t i, const at::Tensor& numbers) const {
    try {
      return memory_of(numbers);
    } catch (const Error& error) {
      throw Error(error.kind(), {.rank = rank_, .operation = "DistributedDataParallel"},
                  "parameter " + names_[i] + ": " + error.text());
    }
  }

  /// Throws Error(bad_argument) if a gradient would be missing, of another type or not averaged.
  void require_unchanged() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad()) {
        refuse(names_[i], "was frozen (requires_grad is off) after it was wrapped");
      }
      const TensorForm now = describe(tensors_[i]);
      if (now == taken_as_[i]) continue;
      refuse(names_[i], "is " + text_of(now) + " now, but was " + text_of(taken_as_[i]) +
                            " when it was wrapped");
    }
    for (const auto& [name, tensor] : frozen_) {
      if (tensor.requires_grad()) {
        refuse(name, "was frozen when it was wrapped, so that its gradients would not be averaged");
      }
    }
  }

 private:
  struct TensorForm {
    at::ScalarType type;
    at::Device device;
    std::vector<std::int64_t> sizes;
    bool operator==(const TensorForm& other) const {
      return type == other.type && device == other.device && sizes == other.sizes;
    }
  };
  static TensorForm describe(const at::Tensor& t) {
    return {t.scalar_type(), t.device(), t.sizes().vec()};
  }
  static std::string text_of(const TensorForm& form) {
    std::string text = std::string(c10::toString(form.type)) + " [";
    for (std::size_t d = 0; d < form.sizes.size(); ++d) {
      text += (d == 0 ? "" : ", ") + std::to_string(form.sizes[d]);
    }
    return text + "] on " + form.device.str();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& text) const {
    throw Error(ErrorKind::bad_argument, {.rank = rank_, .operation = "DistributedDataParallel"},
                "parameter " + name + " " + text +
                    "; change parameters first, and wrap the module then (on all ranks)");
  }

  const int rank_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<TensorForm> taken_as_;
  Named frozen_;
};

}  // namespace detail

/// Each parameter once, in order, as Python's Module.parameters(). libtorch's own function repeats
/// a parameter that two modules share, and an optimizer would step it twice.
inline std::vector<at::Tensor> parameters(const ::torch::nn::Module& module) {
  return detail::each_once(module.parameters());
}
template <class Module>
std::vector<at::Tensor> parameters(const ::torch::nn::ModuleHolder<Module>& module) {
  return parameters(*module.ptr());
}

}  // namespace ddprun::torch
