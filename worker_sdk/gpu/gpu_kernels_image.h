#pragma once
// The image that nvcc made of gpu_kernels.cu when ddprun was built. Used by gpu_kernels.cc.

#include <string_view>

namespace ddprun::worker_sdk {

struct KernelImage {
  std::string_view bytes;    // Empty: there was no nvcc.
  std::string_view made_by;  // "nvcc 13.0 for sm_80, sm_90 and later"
};
KernelImage built_in_kernels();

}  // namespace ddprun::worker_sdk
