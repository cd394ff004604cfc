#pragma once
// A GPU with ddprun's kernels on it, and arrays there: the fakes', or with DDPRUN_TEST_GPU=1 the
// first of this machine.

#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/support/fake_gpu.h"
#include "worker_sdk/gpu/gpu_kernels.h"

namespace ddprun::test {

class Card {
 public:
  Card() : fakes_(std::getenv("DDPRUN_TEST_GPU") ? nullptr : new FakeGpu) {
    gpu_ = worker_sdk::load_gpu_runtime();
    kernels_ = std::make_unique<worker_sdk::GpuKernels>(gpu_, 0);
  }
  const worker_sdk::GpuKernels& kernels() const { return *kernels_; }

  template <class T>
  std::shared_ptr<void> array(const std::vector<T>& values) {
    void* memory = nullptr;
    gpu_->cuda.malloc(&memory, values.size() * sizeof(T) + 1);
    copy(memory, values.data(), values.size() * sizeof(T));
    return {memory, [gpu = gpu_](void* address) { gpu->cuda.free(address); }};
  }
  // Behind what was put into the default stream before.
  template <class T>
  std::vector<T> read(const std::shared_ptr<void>& memory, std::size_t count) {
    std::vector<T> values(count);
    copy(values.data(), memory.get(), count * sizeof(T));
    return values;
  }
  void fill(const std::shared_ptr<void>& memory, std::size_t bytes, int byte) {
    gpu_->cuda.memset(memory.get(), byte, bytes, nullptr);
  }
  void wait() { read<char>(array(std::vector<char>(1)), 1); }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    gpu_->cuda.memcpy(to, from, bytes, worker_sdk::kCudaMemcpyDefault, nullptr);
  }

  std::unique_ptr<FakeGpu> fakes_;
  std::shared_ptr<const worker_sdk::GpuRuntime> gpu_;
  std::unique_ptr<worker_sdk::GpuKernels> kernels_;
};

}  // namespace ddprun::test
