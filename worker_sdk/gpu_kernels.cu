// What ddprun computes on a GPU itself. nvcc makes an image of this for the cards that
// cmake/gpu_kernels.cmake names; gpu_kernels.cc loads it and finds the kernels by their names.
// tests/fakes/fake_driver.cc compiles it for the host, where a block's threads take turns.
//
// A kernel is code of a block: what its threads do is inside each_thread(), which ends with a
// barrier; all else must come out the same for all of them.

#include <cstddef>
#include <cstdint>

#include "worker_sdk/half.h"

#ifdef __CUDACC__
#define DDPRUN_KERNEL extern "C" __global__ void
#define DDPRUN_DEVICE __device__ inline
#else
#define DDPRUN_KERNEL static void
#define DDPRUN_DEVICE inline
#endif

namespace ddprun::worker_sdk::kernels {

#ifdef __CUDACC__
template <class Body>
DDPRUN_DEVICE void each_thread(const Body& body) {
  body(threadIdx.x);
  __syncthreads();
}
#else
struct Place {
  unsigned x = 0, y = 0;
};
inline thread_local Place blockIdx, gridDim, blockDim;

template <class Body>
void each_thread(const Body& body) {
  for (unsigned thread = 0; thread < blockDim.x; ++thread) body(thread);
}
#endif

// `body` for each of 0 .. count - 1 in one of the grid's threads; neighbours in neighbours.
template <class Body>
DDPRUN_DEVICE void each_of(std::size_t count, const Body& body) {
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  each_thread([&](unsigned thread) {
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + thread; i < count; i += threads) {
      body(i);
    }
  });
}

// Read and written by a thread at once.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

template <class From, class To, class Convert>
DDPRUN_DEVICE void convert(const From* from, To* to, std::size_t count, const Convert& one) {
  const auto* fours = reinterpret_cast<const Four<From>*>(from);
  auto* results = reinterpret_cast<Four<To>*>(to);
  each_of(count / 4, [&](std::size_t i) {
    const Four<From> in = fours[i];
    Four<To> out;
    for (int k = 0; k < 4; ++k) out.at[k] = one(in.at[k]);
    results[i] = out;
  });
  const std::size_t done = count / 4 * 4;
  each_of(count - done, [&](std::size_t i) { to[done + i] = one(from[done + i]); });
}

}  // namespace ddprun::worker_sdk::kernels

// X(name, wide type, conversion to the half type, and back). Scaled in f32, then rounded once.
#define DDPRUN_HALF_KERNELS(X)                 \
  X(f32_f16, float, f32_to_f16, f16_to_f32)    \
  X(f32_bf16, float, f32_to_bf16, bf16_to_f32) \
  X(f64_f16, double, f32_to_f16, f16_to_f32)   \
  X(f64_bf16, double, f32_to_bf16, bf16_to_f32)

#define X(name, Wide, narrow, widen)                                                             \
  DDPRUN_KERNEL ddprun_narrow_##name(const Wide* from, std::uint16_t* to, std::size_t count,     \
                                     float factor) {                                             \
    using namespace ddprun::worker_sdk;                                                          \
    kernels::convert(from, to, count, [=](Wide value) {                                          \
      return half::narrow(static_cast<float>(value) * factor);                                   \
    });                                                                                          \
  }                                                                                              \
  DDPRUN_KERNEL ddprun_widen_##name(const std::uint16_t* from, Wide* to, std::size_t count) {    \
    using namespace ddprun::worker_sdk;                                                          \
    kernels::convert(from, to, count,                                                            \
                     [](std::uint16_t value) { return static_cast<Wide>(half::widen(value)); }); \
  }
DDPRUN_HALF_KERNELS(X)
#undef X
