#pragma once
// Whole arrays from one floating-point type to another, to nearest even. Pure. Used by comm hooks.

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

// Between f32 or f64 on one side and f16 or bf16 on the other, of equal counts; f64 goes by way of
// f32.
void convert(const Buffer& from, const Buffer& to);

}  // namespace ddprun::worker_sdk
