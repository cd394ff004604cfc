#pragma once
// A machine with GPUs for tests: the fakes of tests/fakes. To be made before ranks are started.

#include <cstdlib>
#include <string>

namespace ddprun::test {

class FakeGpu {
 public:
  // The faults of the fakes: see tests/fakes/fake_cuda.cc and fake_nccl.cc.
  explicit FakeGpu(const std::string& nccl = "", const std::string& cuda = "") {
    const std::string folder = DDPRUN_FAKES;
    set("DDPRUN_CUDART_LIB", folder + "/libfake_cudart.so");
    set("DDPRUN_NCCL_LIB", folder + "/libfake_nccl.so");
    set("DDPRUN_CUDA_LIB", folder + "/libfake_cudart.so");
    set("DDPRUN_GPU_KERNELS", folder + "/fake_kernels");  // So that no nvcc is needed.
    set("FAKE_NCCL", nccl);
    set("FAKE_CUDA", cuda);
  }
  ~FakeGpu() {
    for (const char* name : {"DDPRUN_CUDART_LIB", "DDPRUN_NCCL_LIB", "DDPRUN_CUDA_LIB",
                             "DDPRUN_GPU_KERNELS", "FAKE_NCCL", "FAKE_CUDA"}) {
      ::unsetenv(name);
    }
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
};

}  // namespace ddprun::test
