#pragma once
// torch.nn.utils.clip_grad_norm_ for arrays: after finish_backward(), before the optimizer's step.
//
//   std::vector<ddprun::Buffer> gradients = ...;          // ddp.gradient(i) of every parameter.
//   const double norm = ddprun::clip_grad_norm(gradients, 1.0);

#include "ddprun/cxx20.h"

#include <span>

#include "ddprun/process_group.h"
#include "ddprun/types.h"

namespace ddprun {

struct ClipOptions {
  /// Of the vector of all gradients: above 0, infinity for the largest absolute value.
  double norm_type = 2;
  /// Throw Error(bad_argument), with the gradients untouched, if the norm is infinite or not a
  /// number. Else they are multiplied by 0 and NaN, as PyTorch does.
  bool error_if_nonfinite = false;
};

/// Scales the gradients (f32, f64, f16 or bf16, of the host) in place so that their norm is at most
/// `max_norm`, and returns the norm that they had: sums are taken in f64. Communicates nothing:
/// averaged gradients, and so the norm, are the same on all ranks. Throws Error(bad_argument).
double clip_grad_norm(std::span<const Buffer> gradients, double max_norm,
                      const ClipOptions& options = {});

/// The same where each rank holds a part of the gradients: the norm is that of all parts.
/// Collective: one all_reduce of 8 bytes.
double clip_grad_norm(ProcessGroup& group, std::span<const Buffer> part, double max_norm,
                      const ClipOptions& options = {});

}  // namespace ddprun
