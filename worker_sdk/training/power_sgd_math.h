#pragma once
// The linear algebra of PowerSGD, for f32 and f64. Pure. Matrices are dense and row-major. Used by
// power_sgd.cc.

#include <cstddef>
#include <cstdint>

namespace ddprun::worker_sdk {

// A rows x columns gradient approximated by p q^T, with p rows x rank and q columns x rank.
struct LowRankShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;
};

// Does sending p and q instead of the matrix save at least `min_rate` times?
bool worth_compressing(const LowRankShape& shape, double min_rate);

template <class T>
void multiply(const LowRankShape& shape, const T* matrix, const T* q, T* p);  // p = matrix q
template <class T>
void multiply_transposed(const LowRankShape& shape, const T* matrix, const T* p,
                         T* q);  // q = matrix^T p
template <class T>
void expand(const LowRankShape& shape, const T* p, const T* q, T* matrix);  // matrix = p q^T

// Columns of a rows x rank matrix become orthonormal, by modified Gram-Schmidt; columns of zeros
// stay zero.
template <class T>
void orthogonalize(T* matrix, std::size_t rows, std::size_t rank, double epsilon);

// Standard normal numbers, equal on every machine: element `i` of stream `seed`.
template <class T>
void draw_normal(std::uint64_t seed, T* values, std::size_t count);

}  // namespace ddprun::worker_sdk
