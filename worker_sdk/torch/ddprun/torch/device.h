#pragma once
// The device of a group's tensors, and libtorch's streams for the SDK. On the backend nccl both
// belong to a GPU; on other backends the device is "cpu" and streams are ignored. Included through
// ddprun/torch.h.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <string>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor.h"

// A libtorch for CUDA brings the first, the toolkit the other.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>
#define DDPRUN_TORCH_CUDA 1
#else
#define DDPRUN_TORCH_CUDA 0
#endif

namespace ddprun::torch {

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

}  // namespace ddprun::torch
