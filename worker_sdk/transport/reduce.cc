#include "worker_sdk/transport/reduce.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <type_traits>

#include "common/assert.h"
#include "worker_sdk/base/half.h"

namespace ddprun::worker_sdk {
namespace {

template <auto kNarrow, class T>
void narrow(const void* from, void* to, std::size_t count) {
  const auto* in = static_cast<const T*>(from);
  auto* out = static_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = kNarrow(static_cast<float>(in[i]));
}

template <auto kWiden, class T>
void widen(const void* from, void* to, std::size_t count) {
  const auto* in = static_cast<const std::uint16_t*>(from);
  auto* out = static_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(kWiden(in[i]));
}

template <auto kNarrow, auto kWiden, class T>
void between(const Buffer& from, const Buffer& to, bool narrowing) {
  if (narrowing) return narrow<kNarrow, T>(from.data, to.data, from.count);
  widen<kWiden, T>(from.data, to.data, from.count);
}

}  // namespace

void convert(const Buffer& from, const Buffer& to) {
  DDPRUN_ASSERT(from.count == to.count);
  const bool narrowing = size_of(to.type) == 2;
  const DataType half_type = narrowing ? to.type : from.type;
  const DataType wide_type = narrowing ? from.type : to.type;
  DDPRUN_ASSERT(is_of(half_type, TypeClass::half));
  DDPRUN_ASSERT(is_of(wide_type, TypeClass::floating));
  const bool f16 = half_type == DataType::f16;
  const bool f32 = wide_type == DataType::f32;
  if (f16 && f32) return between<half::f32_to_f16, half::f16_to_f32, float>(from, to, narrowing);
  if (f16) return between<half::f32_to_f16, half::f16_to_f32, double>(from, to, narrowing);
  if (f32) return between<half::f32_to_bf16, half::bf16_to_f32, float>(from, to, narrowing);
  between<half::f32_to_bf16, half::bf16_to_f32, double>(from, to, narrowing);
}

// Compiled with -O3: the loops below are written for the compiler's vectoriser.

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

struct Bool {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
  static Value load(Stored s) noexcept { return s != 0; }
  static Stored store(Value v) noexcept { return v; }
};

template <class T>
constexpr bool kIsComplex = false;
template <class T>
constexpr bool kIsComplex<std::complex<T>> = true;

// The number by which values of a format are divided and multiplied.
template <class T>
struct ScalarOf {
  using Type = T;
};
template <class T>
struct ScalarOf<std::complex<T>> {
  using Type = T;
};
template <class Format>
using Scalar = typename ScalarOf<typename Format::Value>::Type;

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

struct Band {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a ^ b);
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
    if constexpr (!std::is_integral_v<Value>) {
      if (divisor != 1) {
        for (std::size_t i = 0; i < n; ++i) acc[i] /= static_cast<Scalar<Format>>(divisor);
      }
    }
    Stored* out = static_cast<Stored*>(dst) + begin;
    for (std::size_t i = 0; i < n; ++i) out[i] = Format::store(acc[i]);
  }
}

// For numbers that have an order or bits, or neither.
template <class Format>
void reduce_format(ReduceOp op, void* dst, Sources sources, std::size_t count, int averaged) {
  using Value = typename Format::Value;
  switch (op) {
    case ReduceOp::premul_sum:
    case ReduceOp::sum: return reduce_all<Format, Sum>(dst, sources, count, 1);
    case ReduceOp::avg:
      return reduce_all<Format, Sum>(dst, sources, count, averaged > 0 ? averaged : sources.size);
    case ReduceOp::prod: return reduce_all<Format, Prod>(dst, sources, count, 1);
    default: break;
  }
  if constexpr (!kIsComplex<Value>) {
    if (op == ReduceOp::min) return reduce_all<Format, Min>(dst, sources, count, 1);
    if (op == ReduceOp::max) return reduce_all<Format, Max>(dst, sources, count, 1);
  }
  if constexpr (std::is_integral_v<Value>) {
    if (op == ReduceOp::band) return reduce_all<Format, Band>(dst, sources, count, 1);
    if (op == ReduceOp::bor) return reduce_all<Format, Bor>(dst, sources, count, 1);
    if (op == ReduceOp::bxor) return reduce_all<Format, Bxor>(dst, sources, count, 1);
  }
}

void reduce_bools(ReduceOp op, void* dst, Sources sources, std::size_t count) {
  switch (op) {
    case ReduceOp::prod:
    case ReduceOp::min:
    case ReduceOp::band: return reduce_all<Bool, Band>(dst, sources, count, 1);
    case ReduceOp::bxor: return reduce_all<Bool, Bxor>(dst, sources, count, 1);
    default: return reduce_all<Bool, Bor>(dst, sources, count, 1);
  }
}

// Calls body(format) with that of the type; `boolean` has none that serves all.
template <class Body>
void with_format(DataType type, const Body& body) {
  switch (type) {
    case DataType::f32: return body(Plain<float>());
    case DataType::f64: return body(Plain<double>());
    case DataType::f16: return body(F16());
    case DataType::bf16: return body(Bf16());
    case DataType::i32: return body(Plain<std::int32_t>());
    case DataType::i64: return body(Plain<std::int64_t>());
    case DataType::u8: return body(Plain<std::uint8_t>());
    case DataType::i8: return body(Plain<std::int8_t>());
    case DataType::i16: return body(Plain<std::int16_t>());
    case DataType::u16: return body(Plain<std::uint16_t>());
    case DataType::u32: return body(Plain<std::uint32_t>());
    case DataType::u64: return body(Plain<std::uint64_t>());
    case DataType::c64: return body(Plain<std::complex<float>>());
    case DataType::c128: return body(Plain<std::complex<double>>());
    case DataType::boolean: break;
  }
}

// data[i] = change(data[i], a scalar of its kind), for all types but integers.
template <class Change>
void change_all(DataType type, void* data, std::size_t count, double by, Change change) {
  with_format(type, [&]<class Format>(Format) {
    if constexpr (!std::is_integral_v<typename Format::Value>) {
      auto* elements = static_cast<typename Format::Stored*>(data);
      const auto scalar = static_cast<Scalar<Format>>(by);
      for (std::size_t i = 0; i < count; ++i) {
        elements[i] = Format::store(change(Format::load(elements[i]), scalar));
      }
    }
  });
}

}  // namespace

void reduce(DataType type, ReduceOp op, void* dst, Sources sources, std::size_t count,
            int averaged) {
  DDPRUN_ASSERT(sources.size >= 1);
  DDPRUN_ASSERT(is_defined(type, op));
  if (type == DataType::boolean) return reduce_bools(op, dst, sources, count);
  with_format(type, [&]<class Format>(Format) {
    reduce_format<Format>(op, dst, sources, count, averaged);
  });
}

void divide(DataType type, void* data, std::size_t count, int divisor) {
  DDPRUN_ASSERT(is_defined(type, ReduceOp::avg));
  change_all(type, data, count, divisor, [](auto value, auto by) { return value / by; });
}

void multiply(DataType type, void* data, std::size_t count, double factor) {
  DDPRUN_ASSERT(is_defined(type, ReduceOp::premul_sum));
  change_all(type, data, count, factor, [](auto value, auto by) { return value * by; });
}

float f16_to_f32(std::uint16_t bits) noexcept { return half::f16_to_f32(bits); }
std::uint16_t f32_to_f16(float value) noexcept { return half::f32_to_f16(value); }
float bf16_to_f32(std::uint16_t bits) noexcept { return half::bf16_to_f32(bits); }
std::uint16_t f32_to_bf16(float value) noexcept { return half::f32_to_bf16(value); }

}  // namespace ddprun::worker_sdk
