#include "worker_sdk/training/power_sgd_math.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddprun::worker_sdk {
namespace {

std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

double uniform(std::uint64_t& state) {  // Result in (0, 1].
  return (static_cast<double>(splitmix64(state) >> 11) + 1) * 0x1p-53;
}

}  // namespace

bool worth_compressing(const LowRankShape& s, double min_rate) {
  const double sent = static_cast<double>((s.rows + s.columns) * s.rank);
  return sent * min_rate < static_cast<double>(s.rows * s.columns);
}

template <class T>
void multiply(const LowRankShape& s, const T* matrix, const T* q, T* p) {
  for (std::size_t i = 0; i < s.rows; ++i) {
    T* row = p + i * s.rank;
    std::fill_n(row, s.rank, T{0});
    for (std::size_t j = 0; j < s.columns; ++j) {
      const T value = matrix[i * s.columns + j];
      for (std::size_t k = 0; k < s.rank; ++k) row[k] += value * q[j * s.rank + k];
    }
  }
}

template <class T>
void multiply_transposed(const LowRankShape& s, const T* matrix, const T* p, T* q) {
  std::fill_n(q, s.columns * s.rank, T{0});
  for (std::size_t i = 0; i < s.rows; ++i) {
    for (std::size_t j = 0; j < s.columns; ++j) {
      const T value = matrix[i * s.columns + j];
      for (std::size_t k = 0; k < s.rank; ++k) q[j * s.rank + k] += value * p[i * s.rank + k];
    }
  }
}

template <class T>
void expand(const LowRankShape& s, const T* p, const T* q, T* matrix) {
  for (std::size_t i = 0; i < s.rows; ++i) {
    for (std::size_t j = 0; j < s.columns; ++j) {
      T sum{0};
      for (std::size_t k = 0; k < s.rank; ++k) sum += p[i * s.rank + k] * q[j * s.rank + k];
      matrix[i * s.columns + j] = sum;
    }
  }
}

template <class T>
void orthogonalize(T* matrix, std::size_t rows, std::size_t rank, double epsilon) {
  for (std::size_t k = 0; k < rank; ++k) {
    double square = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      square +=
          static_cast<double>(matrix[i * rank + k]) * static_cast<double>(matrix[i * rank + k]);
    }
    const double norm = std::sqrt(square) + epsilon;
    const T scale = norm > 0 ? static_cast<T>(1 / norm) : T{0};
    for (std::size_t i = 0; i < rows; ++i) matrix[i * rank + k] *= scale;
    for (std::size_t other = k + 1; other < rank; ++other) {
      T along{0};
      for (std::size_t i = 0; i < rows; ++i) {
        along += matrix[i * rank + k] * matrix[i * rank + other];
      }
      for (std::size_t i = 0; i < rows; ++i) {
        matrix[i * rank + other] -= along * matrix[i * rank + k];
      }
    }
  }
}

template <class T>
void draw_normal(std::uint64_t seed, T* values, std::size_t count) {
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < count; i += 2) {  // Box and Muller's pairs.
    const double radius = std::sqrt(-2 * std::log(uniform(state)));
    const double angle = 2 * std::numbers::pi * uniform(state);
    values[i] = static_cast<T>(radius * std::cos(angle));
    if (i + 1 < count) values[i + 1] = static_cast<T>(radius * std::sin(angle));
  }
}

template void multiply(const LowRankShape&, const float*, const float*, float*);
template void multiply(const LowRankShape&, const double*, const double*, double*);
template void multiply_transposed(const LowRankShape&, const float*, const float*, float*);
template void multiply_transposed(const LowRankShape&, const double*, const double*, double*);
template void expand(const LowRankShape&, const float*, const float*, float*);
template void expand(const LowRankShape&, const double*, const double*, double*);
template void orthogonalize(float*, std::size_t, std::size_t, double);
template void orthogonalize(double*, std::size_t, std::size_t, double);
template void draw_normal(std::uint64_t, float*, std::size_t);
template void draw_normal(std::uint64_t, double*, std::size_t);

}  // namespace ddprun::worker_sdk
