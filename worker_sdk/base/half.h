#pragma once
// f16 and bf16 as bits, to and from f32. Without branches, so that loops over them are vectorised;
// constexpr, so that nvcc takes them for GPUs, too. Only reduce.cc, gradient_math.cc and
// gpu_kernels.cu include this; others use the functions in reduce.h. Pure.

#include <bit>
#include <cstdint>

namespace ddprun::worker_sdk::half {

constexpr float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr std::uint16_t f32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const std::uint32_t nan = bits >> 16 | 0x40u;  // Quiet, with the sign and payload that fit.
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

constexpr float f16_to_f32(std::uint16_t h) noexcept {
  const std::uint32_t sign = std::uint32_t{h} << 16 & 0x80000000u;
  const std::uint32_t magnitude = std::uint32_t{h} & 0x7fffu;
  // Normal numbers: move exponent and mantissa up and re-bias. Infinities and NaNs need the bias
  // twice.
  std::uint32_t bits = (magnitude << 13) + (112u << 23);
  bits += magnitude >= 0x7c00u ? 112u << 23 : 0u;
  // Subnormal numbers: let the FPU normalise 1.m * 2^-14 - 2^-14.
  const float small =
      std::bit_cast<float>((magnitude << 13) + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const std::uint32_t chosen = magnitude < 0x400u ? std::bit_cast<std::uint32_t>(small) : bits;
  return std::bit_cast<float>(chosen | sign);
}

constexpr std::uint16_t f32_to_f16(float value) noexcept {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = all >> 16 & 0x8000u;
  const std::uint32_t bits = all & 0x7fffffffu;
  // Normal results: re-bias, round to nearest even; a carry rightly runs into the exponent.
  const std::uint32_t normal = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  // Subnormal results: adding 0.5 lets the FPU shift and round.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + 0.5f) - 0x3f000000u;
  std::uint32_t result = bits < 0x38800000u ? small : normal;
  result = bits >= 0x47800000u ? 0x7c00u : result;                         // Overflow, infinity.
  result = bits > 0x7f800000u ? 0x7e00u | (bits >> 13 & 0x3ffu) : result;  // NaN.
  return static_cast<std::uint16_t>(result | sign);
}

}  // namespace ddprun::worker_sdk::half
