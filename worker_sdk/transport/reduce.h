#pragma once
// Element-wise reductions, in a fixed order: the arithmetic of every backend. Pure.
//
// f16 and bf16 are computed in f32 and rounded once at the end, to nearest even. Integers wrap. min
// and max return a NaN if any source has one. avg divides the sum. premul_sum sums: the caller has
// multiplied.

#include <cstddef>

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

// Whole arrays from one floating-point type to another, to nearest even. Pure. Used by comm hooks.

// Between f32 or f64 on one side and f16 or bf16 on the other, of equal counts; f64 goes by way of
// f32.
void convert(const Buffer& from, const Buffer& to);

// Source arrays of `count` elements each, one per rank, reduced in the order of the array.
struct Sources {
  const void* const* arrays = nullptr;
  int size = 0;
};

// dst[i] = sources[0][i] op sources[1][i] op ...; `dst` may be one of the sources, and is written
// at i only after all sources have been read at i. avg divides by `averaged`, 0: by the number of
// sources.
void reduce(DataType type, ReduceOp op, void* dst, Sources sources, std::size_t count,
            int averaged = 0);

// data[i] = data[i] / divisor, for the types that have avg.
void divide(DataType type, void* data, std::size_t count, int divisor);

// data[i] = data[i] * factor, for the types that have premul_sum.
void multiply(DataType type, void* data, std::size_t count, double factor);

// Conversions, to nearest even.
float f16_to_f32(std::uint16_t bits) noexcept;
std::uint16_t f32_to_f16(float value) noexcept;
float bf16_to_f32(std::uint16_t bits) noexcept;
std::uint16_t f32_to_bf16(float value) noexcept;

}  // namespace ddprun::worker_sdk
