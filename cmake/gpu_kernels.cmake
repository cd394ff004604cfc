# The image of worker_sdk/gpu/gpu_kernels.cu that libddprun carries: code for sm_80 and sm_90, and PTX, of which
# the driver makes code for later cards. Without nvcc the SDK is built without it; then hooks that compute on a
# GPU are refused, and all else works.

option(DDPRUN_GPU_KERNELS "Build ddprun's GPU kernels, where there is an nvcc" ON)
set(DDPRUN_KERNEL_IMAGE "")

find_program(DDPRUN_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)

# Not compressed, which older drivers would not read; not fused, so that sums are the host's to the bit.
set(DDPRUN_NVCC_FLAGS
    -fatbin -no-compress -fmad=false -O3 -std=c++20 --expt-relaxed-constexpr -ccbin ${CMAKE_CXX_COMPILER}
    -allow-unsupported-compiler -gencode arch=compute_80,code=sm_80
    -gencode arch=compute_90,code=[sm_90,compute_90])

# In `result` why this nvcc cannot, or nothing. Asked once: a small kernel tells whether it gets on with the
# compiler's headers.
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
  if(NOT DDPRUN_NVCC_JUDGED STREQUAL DDPRUN_NVCC)
    set(trial ${PROJECT_BINARY_DIR}/nvcc_trial)
    file(WRITE ${trial}.cu "#include <math.h>\n#include <bit>\n#include <numbers>\n"
         "extern \"C\" __global__ void k(float* x) { *x = sqrt(std::bit_cast<float>(7)); }\n")
    execute_process(COMMAND ${DDPRUN_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    execute_process(COMMAND ${DDPRUN_NVCC} ${DDPRUN_NVCC_FLAGS} -o ${trial}.fatbin ${trial}.cu
                    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${version}")
    string(REGEX MATCH "[^\n]*(error|fatal|No such)[^\n]*" complaint "${said}")
    set(why "")
    if(NOT found OR NOT status EQUAL 0)
      set(why "${DDPRUN_NVCC} cannot compile for sm_80 and sm_90: ${complaint}")
    endif()
    set(DDPRUN_NVCC_JUDGED ${DDPRUN_NVCC} CACHE INTERNAL "")
    string(REPLACE "release " "" found "${found}")
    set(DDPRUN_NVCC_VERSION "${found}" CACHE INTERNAL "")
    set(DDPRUN_NVCC_COMPLAINT "${why}" CACHE INTERNAL "")
  endif()
  set(${result} "${DDPRUN_NVCC_COMPLAINT}" PARENT_SCOPE)
endfunction()

ddprun_judge_nvcc(DDPRUN_NO_KERNELS)
if(DDPRUN_NO_KERNELS)
  message(STATUS "GPU kernels are left out: ${DDPRUN_NO_KERNELS}")
  return()
endif()

set(DDPRUN_KERNEL_IMAGE ${PROJECT_BINARY_DIR}/gpu_kernels.fatbin)
set(DDPRUN_KERNEL_IMAGE_MADE_BY "nvcc ${DDPRUN_NVCC_VERSION}, for sm_80, sm_90 and later cards")
add_custom_command(
  OUTPUT ${DDPRUN_KERNEL_IMAGE}
  COMMAND ${DDPRUN_NVCC} ${DDPRUN_NVCC_FLAGS} -o ${DDPRUN_KERNEL_IMAGE} -I${PROJECT_SOURCE_DIR}
          ${PROJECT_SOURCE_DIR}/worker_sdk/gpu/gpu_kernels.cu
  DEPENDS ${PROJECT_SOURCE_DIR}/worker_sdk/gpu/gpu_kernels.cu ${PROJECT_SOURCE_DIR}/worker_sdk/base/half.h
          ${PROJECT_SOURCE_DIR}/worker_sdk/gpu/gpu_kernel_list.h
  COMMENT "Building the GPU kernels by nvcc ${DDPRUN_NVCC_VERSION}"
  VERBATIM)
add_custom_target(ddprun_kernel_image DEPENDS ${DDPRUN_KERNEL_IMAGE})
message(STATUS "GPU kernels: ${DDPRUN_KERNEL_IMAGE_MADE_BY}")
