#pragma once
// A CUDA stream as a program has it, for tests on the fakes.

#include <memory>
#include <thread>

#include "ddprun/types.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace ddprun::test {

class OwnStream {
 public:
  explicit OwnStream(int device) : gpu_(worker_sdk::load_gpu_runtime()) {
    gpu_->cuda.set_device(device);
    gpu_->cuda.stream_create(&stream_, worker_sdk::kCudaStreamNonBlocking, 0);
  }
  ~OwnStream() { gpu_->cuda.stream_destroy(stream_); }
  Stream get() const { return stream_; }
  void set(void* to, int byte, std::size_t bytes) { gpu_->cuda.memset(to, byte, bytes, stream_); }
  void synchronize() {
    worker_sdk::CudaEvent event = nullptr;
    gpu_->cuda.event_create(&event, worker_sdk::kCudaEventDisableTiming);
    gpu_->cuda.event_record(event, stream_);
    while (gpu_->cuda.event_query(event) == worker_sdk::kCudaNotReady) std::this_thread::yield();
    gpu_->cuda.event_destroy(event);
  }

 private:
  const std::shared_ptr<const worker_sdk::GpuRuntime> gpu_;
  worker_sdk::CudaStream stream_ = nullptr;
};

}  // namespace ddprun::test
