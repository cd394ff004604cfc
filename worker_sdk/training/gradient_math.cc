#include "worker_sdk/training/gradient_math.h"

#include <cmath>
#include <cstdint>

#include "common/assert.h"
#include "worker_sdk/base/half.h"

namespace ddprun::worker_sdk {
namespace {

struct F16 {
  std::uint16_t bits;
  explicit operator float() const { return half::f16_to_f32(bits); }
  static F16 of(float value) { return {half::f32_to_f16(value)}; }
};
struct Bf16 {
  std::uint16_t bits;
  explicit operator float() const { return half::bf16_to_f32(bits); }
  static Bf16 of(float value) { return {half::f32_to_bf16(value)}; }
};

// The type in which numbers of type T are computed.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

template <class T, class W>
T narrow(W value) {
  if constexpr (sizeof(T) == 2) {
    return T::of(value);
  } else {
    return value;
  }
}

// Calls body(T* data) with the array's element type.
template <class Body>
auto with_type(const Buffer& gradient, const Body& body) {
  switch (gradient.type) {
    case DataType::f64: return body(static_cast<double*>(gradient.data));
    case DataType::f16: return body(static_cast<F16*>(gradient.data));
    case DataType::bf16: return body(static_cast<Bf16*>(gradient.data));
    default: break;
  }
  DDPRUN_ASSERT(gradient.type == DataType::f32);
  return body(static_cast<float*>(gradient.data));
}

constexpr std::size_t kLanes = 8;  // Sums that do not wait for each other.

template <class T, class Term>
double sum(const T* data, std::size_t count, const Term& term) {
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      lanes[k] += term(static_cast<double>(static_cast<typename Wide<T>::type>(data[i + k])));
    }
  }
  for (std::size_t k = 0; i < count; ++i, ++k) {
    lanes[k] += term(static_cast<double>(static_cast<typename Wide<T>::type>(data[i])));
  }
  double result = 0;
  for (const double lane : lanes) result += lane;
  return result;
}

template <class T>
double largest(const T* data, std::size_t count) {
  double result = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = std::abs(static_cast<double>(static_cast<typename Wide<T>::type>(data[i])));
    if (!(x <= result)) result = x;  // Takes a NaN,
    if (std::isnan(result)) break;   // and keeps it.
  }
  return result;
}

}  // namespace

double sum_of_powers(const Buffer& gradient, double power) {
  return with_type(gradient, [&](auto* data) {
    if (std::isinf(power)) return largest(data, gradient.count);
    if (power == 2) return sum(data, gradient.count, [](double x) { return x * x; });
    if (power == 1) return sum(data, gradient.count, [](double x) { return std::abs(x); });
    return sum(data, gradient.count, [=](double x) { return std::pow(std::abs(x), power); });
  });
}

void multiply(const Buffer& gradient, double factor) {
  with_type(gradient, [&]<class T>(T* data) {
    using W = typename Wide<T>::type;
    const auto by = static_cast<W>(factor);
    for (std::size_t i = 0; i < gradient.count; ++i) {
      data[i] = narrow<T>(static_cast<W>(data[i]) * by);
    }
  });
}

bool all_finite(const Buffer& gradient) {
  return with_type(gradient, [&]<class T>(T* data) {
    // x * 0 is 0, or a NaN if x is not finite: so the loop needs no branch.
    using W = typename Wide<T>::type;
    W zero = 0;
    for (std::size_t i = 0; i < gradient.count; ++i) zero += static_cast<W>(data[i]) * W{0};
    return zero == 0;
  });
}

}  // namespace ddprun::worker_sdk
