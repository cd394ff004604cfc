#pragma once
// Batch normalisation over the batches of all ranks. Included through ddprun/torch.h.
//
// Forward: each rank's mean, variance and count of every channel are all-gathered (counts may
// differ, zero included) and combined. Backward: sums of dy and of dy * (x - mean) are all-reduced.
// Parameters and buffers have the names of torch::nn::BatchNorm, so each can load the state of the
// other.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {

struct SyncBatchNormOptions {
  std::int64_t num_features = 0;
  double eps = 1e-5;
  /// Weight of the newest batch in the running statistics; empty: all batches weigh the same.
  std::optional<double> momentum = 0.1;
};

namespace detail {

inline std::vector<std::int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

// [C] as [1, C, 1, ...], to combine it with `x`.
inline at::Tensor along_channels(const at::Tensor& per_channel, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = per_channel.numel();
  return per_channel.to(x.scalar_type()).view(shape);
}

struct BatchStatistics {
  at::Tensor mean;      // Per channel over all ranks, f64.
  at::Tensor variance;  // Biased.
  double count = 0;     // Values of one channel, over all ranks.
};

inline BatchStatistics gather_statistics(ProcessGroup& group, const at::Tensor& x) {
  const auto channels = x.size(1);
  const double count = channels > 0 ? static_cast<double>(x.numel() / channels) : 0;
  const auto f64 = x.options().dtype(at::kDouble);
  use_current_stream(group);
  at::Tensor mine = at::zeros({2 * channels + 1}, f64);
  if (count > 0) {
    const auto [variance, mean] = at::var_mean(x, all_but_channels(x), /*unbiased=*/false);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels).copy_(variance);
    mine[2 * channels] = count;
  }
  at::Tensor all = at::empty({group.world_size(), 2 * channels + 1}, f64);
  group.all_gather(buffer(group, mine), buffer(group, all));

  BatchStatistics result;
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  result.count = counts.sum().item<double>();
  if (result.count == 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "SyncBatchNorm"}, "no rank has a sample");
  }
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor share = counts / result.count;
  result.mean = (share * means).sum(0);
  result.variance =
      (share * (all.narrow(1, channels, channels) + (means - result.mean).square())).sum(0);
  return result;
}

// Held for a backward pass, which may outlive the layer.
struct HeldGroup : ::torch::CustomClassHolder {
  explicit HeldGroup(std::shared_ptr<ProcessGroup> held) : group(std::move(held)) {}
  std::shared_ptr<ProcessGroup> group;
};

class SyncNormalise : public ::torch::autograd::Function<SyncNormalise> {
 public:
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& invstd, double count,
                            const std::shared_ptr<ProcessGroup>& group) {
    context->save_for_backward({x, weight, mean, invstd});
    context->saved_data["count"] = count;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
    const at::Tensor scale = invstd * weight;
    return at::addcmul(along_channels(bias - mean * scale, x), x, along_channels(scale, x));
  }

  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context,
      const ::torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& invstd = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const auto held = context->saved_data["group"].toCapsule();
    ProcessGroup& group = *static_cast<HeldGroup&>(*held).group;

    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor centred = x - along_channels(saved[2], x);
    const auto dims = all_but_channels(x);
    const at::Tensor sum_dy = dy.sum(dims).to(at::kDouble);
    const at::Tensor sum_dy_centred = (dy * centred).sum(dims).to(at::kDouble);
    at::Tensor sums = at::cat({sum_dy, sum_dy_centred});
    use_current_stream(group);
    group.all_reduce(buffer(group, sums), ReduceOp::sum);

    const auto channels = x.size(1);
    const at::Tensor mean_dy = sums.narrow(0, 0, channels) / count;
    const at::Tensor slope = invstd.square() * (sums.narrow(0, channels, channels) / count);
    const at::Tensor dx = (dy - along_channels(mean_dy, x) - centred * along_channels(slope, x)) *
                          along_channels(invstd * weight, x);
    return {dx,
            (sum_dy_centred * invstd).to(weight.scalar_type()),
            sum_dy.to(weight.scalar_type()),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace detail

/// Every rank must run the layer's training passes equally often. Keeps a handle of the group.
class SyncBatchNormImpl : public ::torch::nn::Module {
 public:
  SyncBatchNormImpl(ProcessGroup& group, const SyncBatchNormOptions& options)
      : group_(std::make_shared<ProcessGroup>(group.share())),
        options_(options),
        weight_(register_parameter("weight", ::torch::ones({options.num_features}))),
        bias_(register_parameter("bias", ::torch::zeros({options.num_features}))),
        running_mean_(register_buffer("running_mean", ::torch::zeros({options.num_features}))),
        running_var_(register_buffer("running_var", ::torch::ones({options.num_features}))),
        batches_(register_buffer("num_batches_tracked", ::torch::zeros({}, at::kLong))) {}

  at::Tensor forward(const at::Tensor& x) {
    if (!is_training()) {
      return ::torch::batch_norm(x, weight_, bias_, running_mean_, running_var_,
                                 /*training=*/false, 0, options_.eps,
                                 /*cudnn_enabled=*/false);
    }
    at::Tensor invstd;
    detail::BatchStatistics batch;
    {
      const ::torch::NoGradGuard no_grad;
      batch = detail::gather_statistics(*group_, x.detach());
      invstd = (batch.variance + options_.eps).rsqrt();
      update_running(batch);
    }
    return detail::SyncNormalise::apply(x.contiguous(), weight_, bias_, batch.mean, invstd,
                                        batch.count, group_);
  }

  const at::Tensor& running_mean() const { return running_mean_; }
  const at::Tensor& running_var() const { return running_var_; }

 private:
  void update_running(const detail::BatchStatistics& batch) {
    const double unbiased = batch.count > 1 ? batch.count / (batch.count - 1) : 1;
    batches_ += 1;
    const auto& momentum = options_.momentum;  // Asking a tensor for its value waits for it.
    const double share = momentum ? *momentum : 1 / batches_.item<double>();
    running_mean_.lerp_(batch.mean.to(running_mean_.scalar_type()), share);
    running_var_.lerp_((batch.variance * unbiased).to(running_var_.scalar_type()), share);
  }

  std::shared_ptr<ProcessGroup> group_;
  SyncBatchNormOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor batches_;
};

// The same as TORCH_MODULE, which does not work in a namespace called torch.
class SyncBatchNorm : public ::torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  using ::torch::nn::ModuleHolder<SyncBatchNormImpl>::ModuleHolder;
  using Impl = SyncBatchNormImpl;
};

}  // namespace ddprun::torch
