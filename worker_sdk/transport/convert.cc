#include "worker_sdk/transport/convert.h"

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

}  // namespace ddprun::worker_sdk
