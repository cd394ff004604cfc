#pragma once
// A machine with GPUs for tests: the fakes of tests/fakes. To be made before ranks are started.

#include <cstdlib>
#include <string>

namespace ddprun::test {

class FakeGpu {
 public:
  // What the fakes are told: see tests/fakes/fake_cuda.cc and fake_nccl.cc.
  explicit FakeGpu(const std::string& nccl = "", const std::string& cuda = "") {
    const std::string folder = DDPRUN_FAKES;
    set("DDPRUN_CUDART_LIB", folder + "/libfake_cudart.so");
    set("DDPRUN_NCCL_LIB", folder + "/libfake_nccl.so");
    set("FAKE_NCCL", nccl);
    set("FAKE_CUDA", cuda);
  }
  ~FakeGpu() {
    for (const char* name : {"DDPRUN_CUDART_LIB", "DDPRUN_NCCL_LIB", "FAKE_NCCL", "FAKE_CUDA"}) {
      ::unsetenv(name);
    }
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
};

}  // namespace ddprun::test
