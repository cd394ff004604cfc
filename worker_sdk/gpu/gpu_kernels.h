#pragma once
// ddprun's own kernels (gpu_kernels.cu), on one GPU. Used by comm hooks on the backend nccl.
//
// They are loaded by the driver, as the runtime's own functions for that exist only since CUDA
// 12.8, into the context that the runtime uses; so streams and memory are the runtime's.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/types.h"
#include "worker_sdk/gpu/gpu_kernel_list.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace ddprun::worker_sdk {

// The image that nvcc made of gpu_kernels.cu when ddprun was built.
struct KernelImage {
  std::string_view bytes;    // Empty: there was no nvcc.
  std::string_view made_by;  // "nvcc 13.0 for sm_80, sm_90 and later"
};
KernelImage built_in_kernels();

class GpuKernels {
 public:
  // Throws Error(unsupported), with the reason, if there are none for this card, driver or build.
  GpuKernels(std::shared_ptr<const GpuRuntime> gpu, int device);
  ~GpuKernels();  // After what was launched is done.
  GpuKernels(const GpuKernels&) = delete;
  GpuKernels& operator=(const GpuKernels&) = delete;

  // Each only puts work into the stream (null: CUDA's default one), from any thread.

  // to = from * factor, between f32 or f64 and a half type of equal counts, either way; as
  // reduce.h does, to the bit. Widening takes no factor. Arrays are aligned to 32 bytes.
  void narrow(const Buffer& from, const Buffer& to, float factor, Stream stream) const;
  void widen(const Buffer& from, const Buffer& to, Stream stream) const;

  struct Grid {  // Of blocks of kernels::kThreads.
    unsigned x = 1, y = 1;
  };
  static Grid grid_for(std::size_t threads, std::size_t rows = 1);  // Kernels go round in it.
  // The arguments' types are the kernel's parameters'.
  template <class... Arguments>
  void launch(GpuKernel kernel, Grid grid, Stream stream, Arguments... arguments) const {
    void* addresses[] = {&arguments...};
    submit(kernel, grid, stream, addresses);
  }

 private:
  void submit(GpuKernel kernel, Grid grid, Stream stream, void** arguments) const;
  void require(int status, const std::string& what) const;

  const std::shared_ptr<const GpuRuntime> gpu_;
  CudaDriverApi driver_;
  CudaContext context_ = nullptr;
  CudaModule module_ = nullptr;
  std::vector<CudaFunction> functions_;  // By GpuKernel.
};

}  // namespace ddprun::worker_sdk
