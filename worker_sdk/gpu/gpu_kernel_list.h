#pragma once
// The names and parameters that gpu_kernels.cu and the callers of its kernels share.

#include <cstddef>

// The names of gpu_kernels.cu, which has "ddprun_" before each.
#define DDPRUN_GPU_KERNEL_LIST(X) \
  X(narrow_f32_f16)               \
  X(narrow_f32_bf16)              \
  X(narrow_f64_f16)               \
  X(narrow_f64_bf16)              \
  X(widen_f32_f16)                \
  X(widen_f32_bf16)               \
  X(widen_f64_f16)                \
  X(widen_f64_bf16)               \
  X(draw_normal_f32)              \
  X(draw_normal_f64)              \
  X(orthogonalize_f32)            \
  X(orthogonalize_f64)            \
  X(multiply_f32)                 \
  X(multiply_f64)                 \
  X(multiply_transposed_f32)      \
  X(multiply_transposed_f64)      \
  X(expand_f32)                   \
  X(expand_f64)                   \
  X(copy_pieces_f32)              \
  X(copy_pieces_f64)

namespace ddprun::worker_sdk {

enum class GpuKernel {
#define X(name) name,
  DDPRUN_GPU_KERNEL_LIST(X)
#undef X
};

namespace kernels {

constexpr unsigned kThreads = 256;  // Per block.
constexpr unsigned kMaxRank = 8;    // Of PowerSGD's approximations.
// For products with a transposed matrix a block takes this many neighbouring columns, and cuts
// their rows into slices.
constexpr unsigned kColumns = 32;
constexpr unsigned kSlices = kThreads / kColumns;

// A gradient of rows x columns and its factors; all row-major, all the device's.
struct LowRank {
  void* gradient = nullptr;
  void* error = nullptr;  // The error of the last step; null: not kept.
  void* p = nullptr;      // rows x rank
  void* q = nullptr;      // columns x rank
  std::size_t rows = 0, columns = 0;
  unsigned rank = 0;
};

struct Piece {
  void* apart = nullptr;
  void* together = nullptr;
  std::size_t count = 0;
};

}  // namespace kernels
}  // namespace ddprun::worker_sdk
