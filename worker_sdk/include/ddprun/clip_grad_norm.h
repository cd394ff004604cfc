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
  /// The norm of the vector of all gradients: above 0; infinity selects the largest absolute value.
  double norm_type = 2;
  /// If true, an infinite or NaN norm leaves the gradients unchanged and throws
  /// Error(bad_argument). If false, such gradients are multiplied by 0 or NaN, as in PyTorch.
  bool error_if_nonfinite = false;
};

/// Scales the gradients (f32, f64, f16 or bf16, in host memory) in place so that their norm is at
/// most `max_norm`, and returns the norm before scaling, computed in f64. Communicates nothing,
/// because averaged gradients, and so their norm, are equal on all ranks. Throws
/// Error(bad_argument).
double clip_grad_norm(std::span<const Buffer> gradients, double max_norm,
                      const ClipOptions& options = {});

/// Like the above, if each rank holds a part of the gradients: computes the norm of all parts.
/// Collective: one all_reduce of 8 bytes.
double clip_grad_norm(ProcessGroup& group, std::span<const Buffer> part, double max_norm,
                      const ClipOptions& options = {});

}  // namespace ddprun
