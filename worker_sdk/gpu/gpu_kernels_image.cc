#include "worker_sdk/gpu/gpu_kernels.h"

// cmake/gpu_kernels.cmake names the file, if there is one. In this section cuobjdump finds it.
#ifdef DDPRUN_KERNEL_IMAGE
asm(".pushsection .nv_fatbin, \"a\"\n"
    ".balign 16\n"
    ".hidden ddprun_kernel_image, ddprun_kernel_image_end\n"
    ".global ddprun_kernel_image, ddprun_kernel_image_end\n"
    "ddprun_kernel_image: .incbin \"" DDPRUN_KERNEL_IMAGE
    "\"\n"
    "ddprun_kernel_image_end:\n"
    ".popsection\n");
extern "C" const char ddprun_kernel_image[];
extern "C" const char ddprun_kernel_image_end[];
#endif

namespace ddprun::worker_sdk {

KernelImage built_in_kernels() {
#ifdef DDPRUN_KERNEL_IMAGE
  return {{ddprun_kernel_image, ddprun_kernel_image_end}, DDPRUN_KERNEL_IMAGE_MADE_BY};
#else
  return {};
#endif
}

}  // namespace ddprun::worker_sdk
