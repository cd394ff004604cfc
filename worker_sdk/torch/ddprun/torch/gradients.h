#pragma once
// clip_grad_norm and GradScaler for libtorch's tensors and optimizers. Included through
// ddprun/torch.h; the arithmetic is the framework-neutral SDK's.

#include "ddprun/cxx20.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ddprun/clip_grad_norm.h"
#include "ddprun/grad_scaler.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {

namespace detail {

// Each parameter's gradient once: two modules may share it.
inline std::vector<at::Tensor> gradients_in(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : each_once(parameters)) {
    if (p.grad().defined()) gradients.push_back(as_real(p.grad()));
  }
  return gradients;
}

inline bool on_host(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.is_cpu(); });
}

// Like ddprun::clip_grad_norm(), by libtorch's kernels. Waits for the device, as it returns the
// norm.
inline double clip_by_kernels(const std::vector<at::Tensor>& gradients, double max_norm,
                              const ClipOptions& options) {
  const ::torch::NoGradGuard no_grad;
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorKind::bad_argument, {.operation = "clip_grad_norm"}, text);
  };
  if (!(options.norm_type > 0)) refuse("norm_type must be above 0");
  std::vector<at::Tensor> norms;
  for (const at::Tensor& g : gradients) {
    norms.push_back(at::norm(g.detach(), options.norm_type, at::kDouble).to(gradients[0].device()));
  }
  const double norm =
      norms.empty() ? 0 : at::norm(at::stack(norms), options.norm_type).item<double>();
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    refuse("the norm of the gradients is " + std::to_string(norm) +
           "; clear error_if_nonfinite to scale by it anyway");
  }
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;  // False for a NaN.
  for (at::Tensor g : gradients) g.mul_(factor);
  return norm;
}

// Multiplies by `inverse` and returns whether all were finite. Waits for the device.
inline bool unscale_by_kernels(const std::vector<at::Tensor>& gradients, double inverse) {
  const ::torch::NoGradGuard no_grad;
  std::vector<at::Tensor> finite;
  for (at::Tensor g : gradients) {
    if (g.scalar_type() == at::kHalf) {
      throw Error(ErrorKind::bad_argument, {.operation = "GradScaler"},
                  "gradients of type f16 cannot be unscaled");
    }
    finite.push_back(at::isfinite(g).all().to(gradients[0].device()));
    g.mul_(static_cast<float>(inverse));
  }
  return finite.empty() || at::stack(finite).all().item<bool>();
}

}  // namespace detail

/// The existing gradients, of each parameter once, as buffers (complex numbers as pairs). They must
/// be contiguous and in host memory.
inline std::vector<Buffer> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<Buffer> gradients;
  for (const at::Tensor& g : detail::gradients_in(parameters)) gradients.push_back(buffer(g));
  return gradients;
}

/// torch.nn.utils.clip_grad_norm_ with error_if_nonfinite; sums are computed in f64. Called after
/// backward(), when gradients are averaged, so it communicates nothing. Returns the norm before
/// clipping; with gradients on a GPU the host waits for it. A parameter given twice counts once.
inline double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                             const ClipOptions& options = {}) {
  const auto gradients = detail::gradients_in(parameters);
  const auto complex = [](const at::Tensor& p) { return p.is_complex() && p.grad().defined(); };
  if (options.norm_type != 2 && std::any_of(parameters.begin(), parameters.end(), complex)) {
    throw Error(ErrorKind::unsupported, {.operation = "clip_grad_norm"},
                "for complex gradients only norm_type 2 is supported");
  }
  if (!detail::on_host(gradients)) return detail::clip_by_kernels(gradients, max_norm, options);
  return ddprun::clip_grad_norm(gradients_of(parameters), max_norm, options);
}

inline double clip_grad_norm(const ::torch::nn::Module& module, double max_norm,
                             const ClipOptions& options = {}) {
  return clip_grad_norm(parameters(module), max_norm, options);
}
template <class Module>
double clip_grad_norm(const ::torch::nn::ModuleHolder<Module>& module, double max_norm,
                      const ClipOptions& options = {}) {
  return clip_grad_norm(parameters(module), max_norm, options);
}

/// torch.amp.GradScaler:
///
///   scaler.scale(loss).backward();
///   scaler.unscale(optimizer);              // Only needed if gradients are read, as by clipping.
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

  /// Divides the gradients of the optimizer's parameters by the scale. Called once per optimizer
  /// between two calls of update(), before its step(); otherwise throws Error(bad_argument).
  void unscale(::torch::optim::Optimizer& optimizer) {
    if (!enabled_) return;
    if (finite_.count(&optimizer) != 0) {
      throw Error(ErrorKind::bad_argument, {.operation = "GradScaler"},
                  "unscale() or step() was called for this optimizer before, since update()");
    }
    std::vector<at::Tensor> parameters;
    for (const auto& group : optimizer.param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    const auto gradients = detail::gradients_in(parameters);
    if (detail::on_host(gradients)) {
      finite_[&optimizer] = scaler_.unscale(gradients_of(parameters));
    } else {
      const bool finite = detail::unscale_by_kernels(gradients, 1 / scaler_.scale());
      scaler_.unscaled(finite);
      finite_[&optimizer] = finite;
    }
  }

  /// Calls optimizer.step() and returns true, or returns false if its gradients overflowed. Accepts
  /// any object with a step(), such as a ZeroRedundancyOptimizer, if `optimizer` was unscaled.
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

  /// Ends an iteration.
  void update() {
    scaler_.update();
    finite_.clear();
  }

  /// The framework-neutral GradScaler: its scale(), its state for checkpoints.
  ddprun::GradScaler& scaler() noexcept { return scaler_; }

 private:
  ddprun::GradScaler scaler_;
  bool enabled_;
  std::map<const ::torch::optim::Optimizer*, bool> finite_;  // Unscaled since update().
};

}  // namespace ddprun::torch
