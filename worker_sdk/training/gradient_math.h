#pragma once
// Loops over gradients of any floating type. Pure. Used by clip_grad_norm.cc and grad_scaler.cc.

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

// The sum of |x| ^ power over the array; with power infinity the largest |x|. A NaN anywhere gives
// a NaN.
double sum_of_powers(const Buffer& gradient, double power);

// x = x * factor, in f32 (f64 for f64), rounded once.
void multiply(const Buffer& gradient, double factor);

bool all_finite(const Buffer& gradient);

}  // namespace ddprun::worker_sdk
