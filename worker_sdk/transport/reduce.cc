// Compiled with -O3: the loops below are written for the compiler's vectoriser.
#include "worker_sdk/transport/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "common/assert.h"
#include "worker_sdk/base/half.h"

namespace ddprun::worker_sdk {
namespace {

// Elements that stay in the first-level cache while all sources are added to them.
constexpr std::size_t kBlock = 2048;

// A storage type, the type to compute in, and the ways between them.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value load(Stored s) noexcept { return s; }
  static Stored store(Value v) noexcept { return v; }
};

struct F16 {
  using Stored = std::uint16_t;
  using Value = float;
  static Value load(Stored s) noexcept { return half::f16_to_f32(s); }
  static Stored store(Value v) noexcept { return half::f32_to_f16(v); }
};

struct Bf16 {
  using Stored = std::uint16_t;
  using Value = float;
  static Value load(Stored s) noexcept { return half::bf16_to_f32(s); }
  static Stored store(Value v) noexcept { return half::f32_to_bf16(v); }
};

// Integers wrap: overflow of a sum of labels must not be undefined behaviour.
template <class T, class F>
T wrapping(T a, T b, F f) noexcept {
  if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<sizeof(T) < 4, unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) noexcept {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// `b != b` lets a NaN of either side through, whatever the order.
struct Min {
  template <class T>
  static T apply(T a, T b) noexcept {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) noexcept {
    return ((b > a) | (b != b)) ? b : a;
  }
};

template <class Format, class Op>
void reduce_block(typename Format::Value* acc, const typename Format::Stored* in, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], Format::load(in[i]));
}

// The first two sources in one pass, the others one after the other into a block that stays cached.
template <class Format, class Op>
void reduce_all(void* dst, Sources sources, std::size_t count, int divisor) {
  using Stored = typename Format::Stored;
  using Value = typename Format::Value;
  const auto source = [&](int i) { return static_cast<const Stored*>(sources.arrays[i]); };
  Value acc[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    const Stored* first = source(0) + begin;
    if (sources.size == 1) {
      for (std::size_t i = 0; i < n; ++i) acc[i] = Format::load(first[i]);
    } else {
      const Stored* second = source(1) + begin;
      for (std::size_t i = 0; i < n; ++i) {
        acc[i] = Op::apply(Format::load(first[i]), Format::load(second[i]));
      }
    }
    for (int r = 2; r < sources.size; ++r) reduce_block<Format, Op>(acc, source(r) + begin, n);
    if constexpr (std::is_floating_point_v<Value>) {
      if (divisor != 1) {
        for (std::size_t i = 0; i < n; ++i) acc[i] /= static_cast<Value>(divisor);
      }
    }
    Stored* out = static_cast<Stored*>(dst) + begin;
    for (std::size_t i = 0; i < n; ++i) out[i] = Format::store(acc[i]);
  }
}

template <class Format>
void reduce_format(ReduceOp op, void* dst, Sources sources, std::size_t count, int averaged) {
  switch (op) {
    case ReduceOp::sum: return reduce_all<Format, Sum>(dst, sources, count, 1);
    case ReduceOp::avg:
      DDPRUN_ASSERT(std::is_floating_point_v<typename Format::Value>);
      return reduce_all<Format, Sum>(dst, sources, count, averaged > 0 ? averaged : sources.size);
    case ReduceOp::min: return reduce_all<Format, Min>(dst, sources, count, 1);
    case ReduceOp::max: return reduce_all<Format, Max>(dst, sources, count, 1);
    case ReduceOp::prod: return reduce_all<Format, Prod>(dst, sources, count, 1);
  }
}

template <class Format>
void divide_format(void* data, std::size_t count, int divisor) {
  auto* elements = static_cast<typename Format::Stored*>(data);
  const auto d = static_cast<typename Format::Value>(divisor);
  for (std::size_t i = 0; i < count; ++i) {
    elements[i] = Format::store(Format::load(elements[i]) / d);
  }
}

}  // namespace

void reduce(DataType type, ReduceOp op, void* dst, Sources sources, std::size_t count,
            int averaged) {
  DDPRUN_ASSERT(sources.size >= 1);
  switch (type) {
    case DataType::f32: return reduce_format<Plain<float>>(op, dst, sources, count, averaged);
    case DataType::f64: return reduce_format<Plain<double>>(op, dst, sources, count, averaged);
    case DataType::f16: return reduce_format<F16>(op, dst, sources, count, averaged);
    case DataType::bf16: return reduce_format<Bf16>(op, dst, sources, count, averaged);
    case DataType::i32:
      return reduce_format<Plain<std::int32_t>>(op, dst, sources, count, averaged);
    case DataType::i64:
      return reduce_format<Plain<std::int64_t>>(op, dst, sources, count, averaged);
    case DataType::u8: return reduce_format<Plain<std::uint8_t>>(op, dst, sources, count, averaged);
  }
}

void divide(DataType type, void* data, std::size_t count, int divisor) {
  switch (type) {
    case DataType::f32: return divide_format<Plain<float>>(data, count, divisor);
    case DataType::f64: return divide_format<Plain<double>>(data, count, divisor);
    case DataType::f16: return divide_format<F16>(data, count, divisor);
    case DataType::bf16: return divide_format<Bf16>(data, count, divisor);
    case DataType::i32:
    case DataType::i64:
    case DataType::u8: DDPRUN_ASSERT(!"an average of integers");
  }
}

float f16_to_f32(std::uint16_t bits) noexcept { return half::f16_to_f32(bits); }
std::uint16_t f32_to_f16(float value) noexcept { return half::f32_to_f16(value); }
float bf16_to_f32(std::uint16_t bits) noexcept { return half::bf16_to_f32(bits); }
std::uint16_t f32_to_bf16(float value) noexcept { return half::f32_to_bf16(value); }

}  // namespace ddprun::worker_sdk
