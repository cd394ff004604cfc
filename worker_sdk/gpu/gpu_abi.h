#pragma once
// The parts of the CUDA runtime and of NCCL that ddprun uses, declared here so that it builds
// without them and runs without a driver: gpu_runtime.cc fills the tables from libcudart and
// libnccl. tests/unit/gpu/gpu_abi_test.cc compares this with NVIDIA's headers if there are any.
// Pure.

#include <climits>
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

using NcclComm = struct NcclCommState*;      // ncclComm_t.
using NcclWindow = struct NcclWindowState*;  // ncclWindow_t.

struct NcclUniqueId {
  char internal[128];
};

constexpr int kNcclSuccess = 0;
constexpr int kNcclSystemError = 2;
constexpr int kNcclInvalidArgument = 4;
constexpr int kNcclInvalidUsage = 5;
constexpr int kNcclRemoteError = 6;
constexpr int kNcclInProgress = 7;

constexpr int kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3, kNcclAvg = 4;
constexpr int kNcclInt8 = 0, kNcclUint8 = 1, kNcclInt32 = 2, kNcclUint32 = 3;
constexpr int kNcclInt64 = 4, kNcclUint64 = 5;
constexpr int kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
constexpr int kNcclWindowSymmetric = 1;
constexpr int kNcclShrinkAbort = 1;

// ncclConfig_t as of 2.28. It contains its own size and version; a library reads no more than it
// knows, and users of an older one wrote less, so this one serves all.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeefU;
  unsigned version = 22809;
  int blocking = INT_MIN;  // INT_MIN: not set.
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int channels_per_net_peer = INT_MIN;
  int nvlink_centric_sched = INT_MIN;
};

// X(member, symbol, result, parameters). Every NCCL from 2.14 on has these ...
#define DDPRUN_NCCL_FUNCTIONS(X)                                                                  \
  X(version, ncclGetVersion, int, (int*))                                                         \
  X(unique_id, ncclGetUniqueId, int, (NcclUniqueId*))                                             \
  X(init, ncclCommInitRankConfig, int, (NcclComm*, int, NcclUniqueId, int, NcclConfig*))          \
  X(finalize, ncclCommFinalize, int, (NcclComm))                                                  \
  X(destroy, ncclCommDestroy, int, (NcclComm))                                                    \
  X(abort, ncclCommAbort, int, (NcclComm))                                                        \
  X(async_error, ncclCommGetAsyncError, int, (NcclComm, int*))                                    \
  X(error_string, ncclGetErrorString, const char*, (int))                                         \
  X(last_error, ncclGetLastError, const char*, (NcclComm))                                        \
  X(all_reduce, ncclAllReduce, int,                                                               \
    (const void*, void*, std::size_t, int, int, NcclComm, CudaStream))                            \
  X(reduce, ncclReduce, int,                                                                      \
    (const void*, void*, std::size_t, int, int, int, NcclComm, CudaStream))                       \
  X(broadcast, ncclBroadcast, int,                                                                \
    (const void*, void*, std::size_t, int, int, NcclComm, CudaStream))                            \
  X(reduce_scatter, ncclReduceScatter, int,                                                       \
    (const void*, void*, std::size_t, int, int, NcclComm, CudaStream))                            \
  X(all_gather, ncclAllGather, int, (const void*, void*, std::size_t, int, NcclComm, CudaStream)) \
  X(send, ncclSend, int, (const void*, std::size_t, int, int, NcclComm, CudaStream))              \
  X(recv, ncclRecv, int, (void*, std::size_t, int, int, NcclComm, CudaStream))                    \
  X(group_start, ncclGroupStart, int, ())                                                         \
  X(group_end, ncclGroupEnd, int, ())

// ... and these are null if the library is too old.
#define DDPRUN_NCCL_OPTIONAL_FUNCTIONS(X)                                            \
  X(mem_alloc, ncclMemAlloc, int, (void**, std::size_t))                             \
  X(mem_free, ncclMemFree, int, (void*))                                             \
  X(comm_register, ncclCommRegister, int, (NcclComm, void*, std::size_t, void**))    \
  X(comm_deregister, ncclCommDeregister, int, (NcclComm, void*))                     \
  X(init_scalable, ncclCommInitRankScalable, int,                                    \
    (NcclComm*, int, int, int, NcclUniqueId*, NcclConfig*))                          \
  X(revoke, ncclCommRevoke, int, (NcclComm, int))                                    \
  X(shrink, ncclCommShrink, int, (NcclComm, int*, int, NcclComm*, NcclConfig*, int)) \
  X(window_register, ncclCommWindowRegister, int,                                    \
    (NcclComm, void*, std::size_t, NcclWindow*, int))                                \
  X(window_deregister, ncclCommWindowDeregister, int, (NcclComm, NcclWindow))

struct NcclApi {
#define X(member, symbol, result, parameters) result(*member) parameters = nullptr;
  DDPRUN_NCCL_FUNCTIONS(X)
  DDPRUN_NCCL_OPTIONAL_FUNCTIONS(X)
#undef X
};

}  // namespace ddprun::worker_sdk
