#pragma once
// The buffers of a module, such as the running averages of batch normalisation, if a batch is
// computed shard by shard: each shard's pass begins with those of the last committed step, and the
// step changes them once, by the mean of the shards' changes. Used by elastic_gradients.h.

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/torch/parameters.h"

namespace ddprun::torch::detail {

class ShardBuffers {
 public:
  explicit ShardBuffers(const ::torch::nn::Module& module) {
    for (const auto& [name, t] : each_once(module.named_buffers())) {
      if (!t.defined() || t.numel() == 0) continue;
      if (t.layout() != at::kStrided || t.is_quantized() || t.is_complex() || !t.is_cpu()) {
        throw Error(ErrorKind::unsupported, {.operation = "ElasticGradients"},
                    "buffer " + name + " is not a dense tensor of real numbers in host memory");
      }
      buffers_.push_back(t);
      change_.push_back(at::zeros({t.numel()}, at::kFloat));
    }
  }

  /// The change of each buffer, which the caller sums over shards and ranks.
  const std::vector<at::Tensor>& changes() const { return change_; }

  void begin() {
    before_.clear();
    for (const at::Tensor& t : buffers_) before_.push_back(t.detach().clone());
  }
  /// After a shard's pass: adds its change times `weight` to changes(), and restores the buffers.
  void take(double weight) {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const at::Tensor now = buffers_[i].to(at::kDouble), then = before_[i].to(at::kDouble);
      change_[i].copy_((now - then).mul_(weight).reshape({-1}));
    }
    reset();
  }
  /// The buffers as they were at begin().
  void reset() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before_.size(); ++i) buffers_[i].copy_(before_[i]);
  }
  /// changes() has the sums: adds them to the buffers.
  void apply() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      at::Tensor sum = before_[i].to(at::kDouble) + change_[i].view(before_[i].sizes());
      if (!before_[i].is_floating_point()) sum.round_();
      buffers_[i].copy_(sum);
    }
  }

 private:
  std::vector<at::Tensor> buffers_, before_;
  std::vector<at::Tensor> change_;  // Flat, of f32.
};

}  // namespace ddprun::torch::detail
