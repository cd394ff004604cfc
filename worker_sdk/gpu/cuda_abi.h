#pragma once
// The part of the CUDA runtime that ddprun uses, declared here so that it builds without a toolkit
// and runs without a driver: gpu_runtime.cc fills the table from libcudart.
// tests/unit/gpu/gpu_abi_test.cc compares this with NVIDIA's header if there is one. Pure.

#include <cstddef>

namespace ddprun::worker_sdk {

using CudaStream = struct CudaStreamState*;  // cudaStream_t; null: the default stream.
using CudaEvent = struct CudaEventState*;    // cudaEvent_t.

constexpr int kCudaSuccess = 0;
constexpr int kCudaInsufficientDriver = 35;
constexpr int kCudaNoDevice = 100;
constexpr int kCudaNotReady = 600;
// Errors of calls that may not be made while a stream is captured.
constexpr int kCudaCaptureErrors = 900, kCudaCaptureErrorsEnd = 908;

constexpr unsigned kCudaStreamNonBlocking = 1;
constexpr unsigned kCudaEventDefault = 0;
constexpr unsigned kCudaEventDisableTiming = 2;
constexpr int kCudaNotCaptured = 0;     // cudaStreamCaptureStatusNone.
constexpr int kCudaCaptureRelaxed = 2;  // cudaStreamCaptureModeRelaxed.
constexpr int kCudaMemcpyDefault = 4;   // The addresses show which are a device's.

// X(member, symbol, result, parameters): all of them are in every CUDA from 11.0 on.
#define DDPRUN_CUDA_FUNCTIONS(X)                                                      \
  X(driver_version, cudaDriverGetVersion, int, (int*))                                \
  X(runtime_version, cudaRuntimeGetVersion, int, (int*))                              \
  X(device_count, cudaGetDeviceCount, int, (int*))                                    \
  X(get_device, cudaGetDevice, int, (int*))                                           \
  X(set_device, cudaSetDevice, int, (int))                                            \
  X(device_synchronize, cudaDeviceSynchronize, int, ())                               \
  X(bus_id, cudaDeviceGetPCIBusId, int, (char*, int, int))                            \
  X(error_string, cudaGetErrorString, const char*, (int))                             \
  X(last_error, cudaGetLastError, int, ())                                            \
  X(peek_error, cudaPeekAtLastError, int, ())                                         \
  X(malloc, cudaMalloc, int, (void**, std::size_t))                                   \
  X(free, cudaFree, int, (void*))                                                     \
  X(memcpy, cudaMemcpyAsync, int, (void*, const void*, std::size_t, int, CudaStream)) \
  X(memset, cudaMemsetAsync, int, (void*, int, std::size_t, CudaStream))              \
  X(priority_range, cudaDeviceGetStreamPriorityRange, int, (int*, int*))              \
  X(stream_create, cudaStreamCreateWithPriority, int, (CudaStream*, unsigned, int))   \
  X(stream_destroy, cudaStreamDestroy, int, (CudaStream))                             \
  X(stream_wait, cudaStreamWaitEvent, int, (CudaStream, CudaEvent, unsigned))         \
  X(is_capturing, cudaStreamIsCapturing, int, (CudaStream, int*))                     \
  X(exchange_capture_mode, cudaThreadExchangeStreamCaptureMode, int, (int*))          \
  X(event_create, cudaEventCreateWithFlags, int, (CudaEvent*, unsigned))              \
  X(event_destroy, cudaEventDestroy, int, (CudaEvent))                                \
  X(event_record, cudaEventRecord, int, (CudaEvent, CudaStream))                      \
  X(event_query, cudaEventQuery, int, (CudaEvent))                                    \
  X(event_elapsed, cudaEventElapsedTime, int, (float*, CudaEvent, CudaEvent))

// Functions of the driver, libcuda.so.1, which alone could load kernels before CUDA 12.8:
// gpu_kernels.cc fills this table. All of them are in every driver for CUDA 11 and later, under
// these names.
using CudaContext = struct CudaContextState*;    // CUcontext.
using CudaModule = struct CudaModuleState*;      // CUmodule.
using CudaFunction = struct CudaFunctionState*;  // CUfunction.

#define DDPRUN_CUDA_DRIVER_FUNCTIONS(X)                                                  \
  X(get_context, cuCtxGetCurrent, int, (CudaContext*))                                   \
  X(set_context, cuCtxSetCurrent, int, (CudaContext))                                    \
  X(load, cuModuleLoadData, int, (CudaModule*, const void*))                             \
  X(unload, cuModuleUnload, int, (CudaModule))                                           \
  X(function, cuModuleGetFunction, int, (CudaFunction*, CudaModule, const char*))        \
  X(launch, cuLaunchKernel, int,                                                         \
    (CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
     CudaStream, void**, void**))                                                        \
  X(error_string, cuGetErrorString, int, (int, const char**))

struct CudaDriverApi {
#define X(member, symbol, result, parameters) result(*member) parameters = nullptr;
  DDPRUN_CUDA_DRIVER_FUNCTIONS(X)
#undef X
};

struct CudaApi {
#define X(member, symbol, result, parameters) result(*member) parameters = nullptr;
  DDPRUN_CUDA_FUNCTIONS(X)
#undef X
};

}  // namespace ddprun::worker_sdk
