// ddprun's own computations on a GPU. nvcc makes an image of this for the cards that
// cmake/gpu_kernels.cmake names; gpu_kernels.cc loads it and finds the kernels by their names.
// tests/fakes/fake_driver.cc compiles it for the host, where a block's threads take turns.
//
// A kernel is code of a block: the work of its threads is inside each_thread(), which ends with a
// barrier; all other code must give the same result in all of them.

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <numbers>

#include "worker_sdk/gpu/gpu_kernel_list.h"
#include "worker_sdk/base/half.h"

#ifdef __CUDACC__
#define DDPRUN_KERNEL extern "C" __global__ void
#define DDPRUN_DEVICE __device__ inline
#define DDPRUN_SHARED __shared__
#else
#define DDPRUN_KERNEL static void
#define DDPRUN_DEVICE inline
#define DDPRUN_SHARED
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

// The rest is PowerSGD's (power_sgd.cc); power_sgd_math.h describes each function. A block has
// kThreads; each matrix of the table has a row of blocks. Sums are taken in an order that depends
// on the sizes alone, so ranks with equal factors get equal gradients.

DDPRUN_DEVICE std::uint64_t splitmix64(std::uint64_t state) {
  std::uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

DDPRUN_DEVICE double uniform(std::uint64_t seed, std::uint64_t number) {  // Result in (0, 1].
  const std::uint64_t bits = splitmix64(seed + number * 0x9e3779b97f4a7c15U);
  return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

template <class T>
DDPRUN_DEVICE void draw_normal(T* values, std::size_t count, std::uint64_t seed) {
  each_of((count + 1) / 2, [&](std::size_t pair) {
    const double radius = sqrt(-2 * log(uniform(seed, 2 * pair + 1)));
    const double angle = 2 * std::numbers::pi * uniform(seed, 2 * pair + 2);
    values[2 * pair] = static_cast<T>(radius * cos(angle));
    if (2 * pair + 1 < count) values[2 * pair + 1] = static_cast<T>(radius * sin(angle));
  });
}

// The product of columns a and b, the same for all threads of the block.
template <class T>
DDPRUN_DEVICE double dot(const T* matrix, std::size_t rows, unsigned rank, unsigned a, unsigned b,
                         double* partial) {
  each_thread([&](unsigned thread) {
    double sum = 0;
    for (std::size_t i = thread; i < rows; i += kThreads) {
      sum += static_cast<double>(matrix[i * rank + a]) * static_cast<double>(matrix[i * rank + b]);
    }
    partial[thread] = sum;
  });
  double sum = 0;
  for (unsigned thread = 0; thread < kThreads; ++thread) sum += partial[thread];
  return sum;
}

// Orthogonalizes a matrix with one block.
template <class T>
DDPRUN_DEVICE void orthogonalize(T* matrix, std::size_t rows, unsigned rank, double epsilon) {
  DDPRUN_SHARED double partial[kThreads];
  for (unsigned k = 0; k < rank; ++k) {
    const double norm = sqrt(dot(matrix, rows, rank, k, k, partial)) + epsilon;
    const T scale = norm > 0 ? static_cast<T>(1 / norm) : T{0};
    each_thread([&](unsigned thread) {
      for (std::size_t i = thread; i < rows; i += kThreads) matrix[i * rank + k] *= scale;
    });
    for (unsigned other = k + 1; other < rank; ++other) {
      const T along = static_cast<T>(dot(matrix, rows, rank, k, other, partial));
      each_thread([&](unsigned thread) {
        for (std::size_t i = thread; i < rows; i += kThreads) {
          matrix[i * rank + other] -= along * matrix[i * rank + k];
        }
      });
    }
  }
}

// Also adds the error of the last step, and stores the sum. A block does a row.
template <class T>
DDPRUN_DEVICE void multiply(const LowRank& m) {
  DDPRUN_SHARED T partial[kThreads * kMaxRank];
  auto* const gradient = static_cast<T*>(m.gradient);
  auto* const error = static_cast<T*>(m.error);
  const auto* const q = static_cast<const T*>(m.q);
  for (std::size_t i = blockIdx.x; i < m.rows; i += gridDim.x) {
    each_thread([&](unsigned thread) {
      T sum[kMaxRank] = {};
      for (std::size_t j = thread; j < m.columns; j += kThreads) {
        const std::size_t at = i * m.columns + j;
        T value = gradient[at];
        if (error) error[at] = gradient[at] = value += error[at];
        for (unsigned k = 0; k < kMaxRank; ++k) {
          if (k < m.rank) sum[k] += value * q[j * m.rank + k];
        }
      }
      for (unsigned k = 0; k < kMaxRank; ++k) partial[thread * kMaxRank + k] = sum[k];
    });
    each_thread([&](unsigned k) {
      if (k >= m.rank) return;
      T sum{0};
      for (unsigned t = 0; t < kThreads; ++t) sum += partial[t * kMaxRank + k];
      static_cast<T*>(m.p)[i * m.rank + k] = sum;
    });
  }
}

template <class T>
DDPRUN_DEVICE void multiply_transposed(const LowRank& m) {
  DDPRUN_SHARED T partial[kThreads * kMaxRank];
  const auto* const gradient = static_cast<const T*>(m.gradient);
  const auto* const p = static_cast<const T*>(m.p);
  const std::size_t step = std::size_t{gridDim.x} * kColumns;
  for (std::size_t first = std::size_t{blockIdx.x} * kColumns; first < m.columns; first += step) {
    each_thread([&](unsigned thread) {
      T sum[kMaxRank] = {};
      const std::size_t j = first + thread % kColumns;
      for (std::size_t i = thread / kColumns; i < m.rows && j < m.columns; i += kSlices) {
        const T value = gradient[i * m.columns + j];
        for (unsigned k = 0; k < kMaxRank; ++k) {
          if (k < m.rank) sum[k] += value * p[i * m.rank + k];
        }
      }
      for (unsigned k = 0; k < kMaxRank; ++k) partial[thread * kMaxRank + k] = sum[k];
    });
    each_thread([&](unsigned thread) {
      const std::size_t j = first + thread % kColumns;
      const unsigned k = thread / kColumns;  // kSlices >= kMaxRank: each k has a thread.
      if (j >= m.columns || k >= m.rank) return;
      T sum{0};
      for (unsigned slice = 0; slice < kSlices; ++slice) {
        sum += partial[(slice * kColumns + thread % kColumns) * kMaxRank + k];
      }
      static_cast<T*>(m.q)[j * m.rank + k] = sum;
    });
  }
}
static_assert(kSlices >= kMaxRank);

// Also stores the error of the approximation.
template <class T>
DDPRUN_DEVICE void expand(const LowRank& m) {
  const auto* const p = static_cast<const T*>(m.p);
  const auto* const q = static_cast<const T*>(m.q);
  each_of(m.rows * m.columns, [&](std::size_t at) {
    const std::size_t i = at / m.columns, j = at % m.columns;
    T sum{0};
    for (unsigned k = 0; k < m.rank; ++k) sum += p[i * m.rank + k] * q[j * m.rank + k];
    static_cast<T*>(m.gradient)[at] = sum;
    if (m.error) static_cast<T*>(m.error)[at] -= sum;
  });
}

// Many small arrays into one large, or back.
template <class T>
DDPRUN_DEVICE void copy_piece(const Piece& piece, bool back) {
  auto* const from = static_cast<T*>(back ? piece.together : piece.apart);
  auto* const to = static_cast<T*>(back ? piece.apart : piece.together);
  each_of(piece.count, [&](std::size_t i) { to[i] = from[i]; });
}

template <class Entry, class Body>
DDPRUN_DEVICE void each_entry(const Entry* table, unsigned count, const Body& body) {
  for (unsigned i = blockIdx.y; i < count; i += gridDim.y) body(table[i]);
}

}  // namespace ddprun::worker_sdk::kernels

namespace kernels = ddprun::worker_sdk::kernels;
namespace half = ddprun::worker_sdk::half;

// X(name, wide type, conversion to the half type, and back). Scaled in f32, then rounded once.
#define DDPRUN_HALF_KERNELS(X)                 \
  X(f32_f16, float, f32_to_f16, f16_to_f32)    \
  X(f32_bf16, float, f32_to_bf16, bf16_to_f32) \
  X(f64_f16, double, f32_to_f16, f16_to_f32)   \
  X(f64_bf16, double, f32_to_bf16, bf16_to_f32)

#define X(name, Wide, narrow, widen)                                                             \
  DDPRUN_KERNEL ddprun_narrow_##name(const Wide* from, std::uint16_t* to, std::size_t count,     \
                                     float factor) {                                             \
    kernels::convert(from, to, count, [=](Wide value) {                                          \
      return half::narrow(static_cast<float>(value) * factor);                                   \
    });                                                                                          \
  }                                                                                              \
  DDPRUN_KERNEL ddprun_widen_##name(const std::uint16_t* from, Wide* to, std::size_t count) {    \
    kernels::convert(from, to, count,                                                            \
                     [](std::uint16_t value) { return static_cast<Wide>(half::widen(value)); }); \
  }
DDPRUN_HALF_KERNELS(X)
#undef X

#define DDPRUN_WIDE_KERNELS(X) X(f32, float) X(f64, double)

#define X(type, T)                                                                                 \
  DDPRUN_KERNEL ddprun_draw_normal_##type(T* values, std::size_t count, std::uint64_t seed) {      \
    kernels::draw_normal(values, count, seed);                                                     \
  }                                                                                                \
  DDPRUN_KERNEL ddprun_orthogonalize_##type(const kernels::LowRank* table, unsigned count,         \
                                            int of_q, double epsilon) {                            \
    kernels::each_entry(table, count, [=](const kernels::LowRank& m) {                             \
      kernels::orthogonalize(static_cast<T*>(of_q ? m.q : m.p), of_q ? m.columns : m.rows, m.rank, \
                             epsilon);                                                             \
    });                                                                                            \
  }                                                                                                \
  DDPRUN_KERNEL ddprun_multiply_##type(const kernels::LowRank* table, unsigned count) {            \
    kernels::each_entry(table, count, kernels::multiply<T>);                                       \
  }                                                                                                \
  DDPRUN_KERNEL ddprun_multiply_transposed_##type(const kernels::LowRank* table, unsigned count) { \
    kernels::each_entry(table, count, kernels::multiply_transposed<T>);                            \
  }                                                                                                \
  DDPRUN_KERNEL ddprun_expand_##type(const kernels::LowRank* table, unsigned count) {              \
    kernels::each_entry(table, count, kernels::expand<T>);                                         \
  }                                                                                                \
  DDPRUN_KERNEL ddprun_copy_pieces_##type(const kernels::Piece* table, unsigned count, int back) { \
    kernels::each_entry(table, count, [=](const kernels::Piece& piece) {                           \
      kernels::copy_piece<T>(piece, back != 0);                                                    \
    });                                                                                            \
  }
DDPRUN_WIDE_KERNELS(X)
#undef X
