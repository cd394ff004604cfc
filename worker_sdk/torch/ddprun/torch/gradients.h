#pragma once
// clip_grad_norm and GradScaler for libtorch's tensors and optimizers. Included through
// ddprun/torch.h; the arithmetic is the framework-neutral SDK's.

#include <torch/torch.h>

#include <map>
#include <span>
#include <vector>

#include "ddprun/clip_grad_norm.h"
#include "ddprun/grad_scaler.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {

/// The gradients that there are, as buffers; they must be contiguous and the host's.
inline std::vector<Buffer> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<Buffer> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(buffer(p.grad()));
  }
  return gradients;
}

/// torch.nn.utils.clip_grad_norm_ with error_if_nonfinite; sums are taken in f64. After backward(),
/// when gradients are averaged: so it communicates nothing. Returns the norm before.
inline double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                             const ClipOptions& options = {}) {
  return ddprun::clip_grad_norm(gradients_of(parameters), max_norm, options);
}

/// torch.amp.GradScaler:
///
///   scaler.scale(loss).backward();
///   scaler.unscale(optimizer);              // Only if gradients are looked at, as by clipping.
///   clip_grad_norm(parameters, 1.0);
///   scaler.step(optimizer);
///   scaler.update();
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {})
      : scaler_(options), enabled_(options.enabled) {}

  at::Tensor scale(const at::Tensor& loss) const {
    return enabled_ ? loss * scaler_.scale() : loss;
  }

  /// Divides the gradients of the optimizer's parameters by the scale. Once between two update()
  /// for each optimizer, and before its step(); else throws Error(bad_argument).
  void unscale(::torch::optim::Optimizer& optimizer) {
    if (!enabled_) return;
    if (finite_.count(&optimizer) != 0) {
      throw Error(ErrorKind::bad_argument, {.operation = "GradScaler"},
                  "unscale() or step() was called for this optimizer before, since update()");
    }
    std::vector<Buffer> gradients;
    for (const auto& group : optimizer.param_groups()) {
      const auto more = gradients_of(group.params());
      gradients.insert(gradients.end(), more.begin(), more.end());
    }
    finite_[&optimizer] = scaler_.unscale(gradients);
  }

  /// optimizer.step(), unless its gradients overflowed: then false. Any object with a step() will
  /// do, such as a ZeroRedundancyOptimizer, if `optimizer` is what was unscaled.
  template <class Stepped>
  bool step(::torch::optim::Optimizer& optimizer, Stepped& stepped) {
    if (enabled_) {
      if (finite_.count(&optimizer) == 0) unscale(optimizer);
      if (!finite_.at(&optimizer)) return false;
    }
    stepped.step();
    return true;
  }
  bool step(::torch::optim::Optimizer& optimizer) { return step(optimizer, optimizer); }

  /// At the end of each iteration.
  void update() {
    scaler_.update();
    finite_.clear();
  }

  /// The framework-neutral object beneath: its scale(), its state for checkpoints.
  ddprun::GradScaler& scaler() noexcept { return scaler_; }

 private:
  ddprun::GradScaler scaler_;
  bool enabled_;
  std::map<const ::torch::optim::Optimizer*, bool> finite_;  // Unscaled since update().
};

}  // namespace ddprun::torch
