#pragma once
// Where a group's tensors live, and libtorch's streams as the SDK's. On the backend nccl both are a
// GPU's; on the others this says "cpu" and does nothing. Included through ddprun/torch.h.

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

/// Of the tensors that the group's operations take: "cuda:1" on nccl, else "cpu".
inline at::Device device_of(const ProcessGroup& group) {
  if (group.device() < 0) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.device()));
}

namespace detail {

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What is put into `waits` from now on is done after what is in `first` by now.
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

// Nothing, or why operations of the group cannot take the tensor.
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

/// From now on the group's operations that name no stream are put behind what is in libtorch's
/// current stream, which waits for them. The classes of this library do so by themselves.
inline void use_current_stream(ProcessGroup& group) {
  if (group.device() < 0) return;
  group.use_stream(detail::native_stream(detail::current_stream(device_of(group))));
}

/// The memory of a contiguous tensor for an operation of `group`: of its GPU on nccl, else of the
/// host. Throws Error if it is elsewhere. On nccl call use_current_stream() before the operation.
inline Buffer buffer(const ProcessGroup& group, const at::Tensor& tensor) {
  const std::string objection = detail::objection(group, tensor);
  if (!objection.empty()) {
    throw Error(ErrorKind::bad_argument, {.rank = group.rank(), .operation = "ddprun::torch"},
                "a tensor " + objection);
  }
  return detail::memory_of(tensor);
}

}  // namespace ddprun::torch
