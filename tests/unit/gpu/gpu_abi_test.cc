// Our declarations of the CUDA runtime and NCCL against NVIDIA's headers, where they are installed.
// All of it is checked by the compiler.

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "worker_sdk/gpu/gpu_abi.h"

#include <cuda_runtime_api.h>

namespace ddprun::worker_sdk {
namespace {

// Enums travel as ints; pointers to whatever as pointers; the unique id as 128 bytes of memory.
template <class Ours, class Theirs>
constexpr bool travels_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else if constexpr (std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_trivially_copyable_v<Ours>;
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R1, class... P1, class R2, class... P2>
requires(sizeof...(P1) == sizeof...(P2)) struct Alike<R1 (*)(P1...), R2 (*)(P2...)>
    : std::bool_constant<travels_alike<R1, R2>() && (travels_alike<P1, P2>() && ...)> {
};

// Before the next header, which brings overloads of some of these for C++.
#define X(member, symbol, result, parameters) \
  static_assert(Alike<decltype(CudaApi::member), decltype(&::symbol)>::value, #symbol);
DDPRUN_CUDA_FUNCTIONS(X)
#undef X

}  // namespace
}  // namespace ddprun::worker_sdk

#include <cuda.h>
#include <nccl.h>

#include <catch2/catch.hpp>

namespace ddprun::worker_sdk {
namespace {

#define X(member, symbol, result, parameters) \
  static_assert(Alike<decltype(CudaDriverApi::member), decltype(&::symbol)>::value, #symbol);
DDPRUN_CUDA_DRIVER_FUNCTIONS(X)
#undef X

// Their headers give another name to a function if its parameters have changed since.
#define NAME_OF(symbol) #symbol
#define X(member, symbol, result, parameters) \
  static_assert(std::string_view(NAME_OF(symbol)) == #symbol);
DDPRUN_CUDA_DRIVER_FUNCTIONS(X)
#undef X

#define X(member, symbol, result, parameters) \
  static_assert(Alike<decltype(NcclApi::member), decltype(&::symbol)>::value, #symbol);
DDPRUN_NCCL_FUNCTIONS(X)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
DDPRUN_NCCL_OPTIONAL_FUNCTIONS(X)
#endif
#undef X

static_assert(kCudaSuccess == cudaSuccess && kCudaNoDevice == cudaErrorNoDevice &&
              kCudaInsufficientDriver == cudaErrorInsufficientDriver &&
              kCudaNotReady == cudaErrorNotReady);
static_assert(kCudaStreamNonBlocking == cudaStreamNonBlocking &&
              kCudaEventDefault == cudaEventDefault &&
              kCudaEventDisableTiming == cudaEventDisableTiming &&
              kCudaMemcpyDefault == cudaMemcpyDefault);
static_assert(kNcclSuccess == ncclSuccess && kNcclSystemError == ncclSystemError &&
              kNcclInvalidArgument == ncclInvalidArgument &&
              kNcclInvalidUsage == ncclInvalidUsage && kNcclRemoteError == ncclRemoteError &&
              kNcclInProgress == ncclInProgress);
static_assert(kNcclSum == ncclSum && kNcclProd == ncclProd && kNcclMax == ncclMax &&
              kNcclMin == ncclMin && kNcclAvg == ncclAvg);
static_assert(kNcclInt8 == ncclInt8 && kNcclUint32 == ncclUint32 && kNcclUint64 == ncclUint64);
static_assert(kNcclUint8 == ncclUint8 && kNcclInt32 == ncclInt32 && kNcclInt64 == ncclInt64 &&
              kNcclFloat16 == ncclFloat16 && kNcclFloat32 == ncclFloat32 &&
              kNcclFloat64 == ncclFloat64 && kNcclBfloat16 == ncclBfloat16);
static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);

#define SAME_PLACE(ours, theirs) \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
SAME_PLACE(traffic_class, trafficClass);
SAME_PLACE(comm_name, commName);
SAME_PLACE(cta_policy, CTAPolicy);
static_assert(kNcclWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC);
static_assert(kNcclShrinkAbort == NCCL_SHRINK_ABORT);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
SAME_PLACE(nvlink_centric_sched, nvlinkCentricSched);
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
#endif

TEST_CASE("GPU ABI: ours begins as NVIDIA's initialiser does", "[nccl]") {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  CHECK(ours.magic == theirs.magic);
  CHECK(ours.blocking == theirs.blocking);
  CHECK(ours.traffic_class == theirs.trafficClass);
  CHECK(ours.comm_name == theirs.commName);
}

}  // namespace
}  // namespace ddprun::worker_sdk
