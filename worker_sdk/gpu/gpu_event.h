#pragma once
// CUDA events as marks in a stream: for the backend nccl, and for programs that have a CUDA of
// their own, such as PyTorch's.

#include <memory>

#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

bool is_captured(const GpuRuntime& gpu, CudaStream stream);

// A CUDA event that ends with its owner.
class GpuEvent final : public DeviceMark {
 public:
  GpuEvent(std::shared_ptr<const GpuRuntime> gpu, int device, unsigned flags);
  ~GpuEvent() override;
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void record(CudaStream stream);
  void hold_up(CudaStream stream) const;  // Later work in the stream waits for the event.
  bool passed() const override;
  // kCudaSuccess: passed; kCudaNotReady; or an error of the device, which carries out nothing more.
  int poll() const;
  std::chrono::nanoseconds until(const DeviceMark& end) const override;

 private:
  const std::shared_ptr<const GpuRuntime> gpu_;
  const int device_;
  const unsigned flags_;
  CudaEvent event_ = nullptr;  // From gpu_->events.
};

// Marks in the streams of a program that another library drives: none of them is worth an error.
class ForeignStreams final : public StreamMarks {
 public:
  // Throws Error(unsupported) if this process has no CUDA, or no GPU.
  ForeignStreams() : gpu_(load_cuda_runtime()) {}

  void use_device(int device) { device_ = device; }
  // Null also if CUDA refuses, as after an error of the device.
  std::shared_ptr<const DeviceMark> mark(Stream stream) override;

 private:
  const std::shared_ptr<const GpuRuntime> gpu_;
  int device_ = 0;
};

}  // namespace ddprun::worker_sdk
