# The image of worker_sdk/gpu_kernels.cu that libddprun carries: code for sm_80 and sm_90, and PTX, of which
# the driver makes code for later cards. Without nvcc the SDK is built without it; then hooks that compute on a
# GPU are refused, and all else works.

option(DDPRUN_GPU_KERNELS "Build ddprun's GPU kernels, where there is an nvcc" ON)
set(DDPRUN_KERNEL_IMAGE "")

find_program(DDPRUN_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)

# In `result` why this nvcc cannot, or nothing.
function(ddprun_judge_nvcc result)
  set(${result} "" PARENT_SCOPE)
  if(NOT DDPRUN_GPU_KERNELS)
    set(${result} "DDPRUN_GPU_KERNELS is OFF" PARENT_SCOPE)
    return()
  endif()
  if(NOT DDPRUN_NVCC)
    set(${result} "no nvcc" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${DDPRUN_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${result} "${DDPRUN_NVCC} does not tell its version" PARENT_SCOPE)
    return()
  endif()
  set(DDPRUN_NVCC_VERSION ${CMAKE_MATCH_1} PARENT_SCOPE)
  if(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(${result} "nvcc ${CMAKE_MATCH_1} knows no C++20; 12.0 or later does" PARENT_SCOPE)
  endif()
endfunction()

ddprun_judge_nvcc(DDPRUN_NO_KERNELS)
if(DDPRUN_NO_KERNELS)
  message(STATUS "GPU kernels are left out: ${DDPRUN_NO_KERNELS}")
  return()
endif()

set(DDPRUN_KERNEL_IMAGE ${PROJECT_BINARY_DIR}/gpu_kernels.fatbin)
set(DDPRUN_KERNEL_IMAGE_MADE_BY "nvcc ${DDPRUN_NVCC_VERSION}, for sm_80, sm_90 and later cards")
# Not compressed, which older drivers would not read; not fused, so that sums are the host's to the bit.
add_custom_command(
  OUTPUT ${DDPRUN_KERNEL_IMAGE}
  COMMAND ${DDPRUN_NVCC} -fatbin -o ${DDPRUN_KERNEL_IMAGE} -no-compress -fmad=false -O3 -std=c++20
          --expt-relaxed-constexpr -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler
          -I${PROJECT_SOURCE_DIR}
          -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
          ${PROJECT_SOURCE_DIR}/worker_sdk/gpu_kernels.cu
  DEPENDS ${PROJECT_SOURCE_DIR}/worker_sdk/gpu_kernels.cu ${PROJECT_SOURCE_DIR}/worker_sdk/half.h
          ${PROJECT_SOURCE_DIR}/worker_sdk/gpu_kernel_list.h
  COMMENT "Building the GPU kernels by nvcc ${DDPRUN_NVCC_VERSION}"
  VERBATIM)
message(STATUS "GPU kernels: ${DDPRUN_KERNEL_IMAGE_MADE_BY}")
add_custom_target(ddprun_kernel_image DEPENDS ${DDPRUN_KERNEL_IMAGE})
