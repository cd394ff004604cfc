#pragma once
// DistributedDataParallel for libtorch modules: drives the SDK's class of the same name by autograd
// hooks. Included through ddprun/torch.h.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ddprun/distributed_data_parallel.h"
#include "ddprun/torch/averager.h"

namespace ddprun::torch {

/// Wraps a module so that after backward() every `.grad` is the average over all ranks. The module
/// remains usable by itself; its parameters must not be replaced. If a parameter was frozen,
/// unfrozen or given another type or device, the next training pass throws Error(bad_argument) with
/// its name. Not movable, because NoSync refers to it.
template <class Module>
class DistributedDataParallel {
 public:
  /// Checks that all ranks have the same parameters, then copies rank 0's parameters and buffers to
  /// all ranks. A parameter that several modules share is sent once. Keeps a handle of the group.
  /// Throws Error.
  DistributedDataParallel(ProcessGroup& group, std::shared_ptr<Module> module,
                          const DdpOptions& options = {})
      : module_(std::move(module)),
        options_(options),
        averager_(std::make_shared<detail::Averager>(group, *module_, options)) {
    averager_->install_hooks();
  }
  DistributedDataParallel(ProcessGroup& group, const ::torch::nn::ModuleHolder<Module>& module,
                          const DdpOptions& options = {})
      : DistributedDataParallel(group, module.ptr(), options) {}
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  /// ddp(x): calls the module's forward(), after a broadcast of rank 0's buffers if the options
  /// request it. Training passes must use this operator.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    averager_->forget_pass();
    const bool training = module_->is_training();
    if (training && at::GradMode::is_enabled()) averager_->require_unchanged();
    averager_->install_hooks();
    if (options_.broadcast_buffers && !options_.uneven_inputs && !averager_->alone() && training &&
        synchronises()) {
      broadcast_buffers();
    }
    if (!training) return module_->forward(std::forward<Arguments>(arguments)...);
    averager_->begin_forward();
    auto result = module_->forward(std::forward<Arguments>(arguments)...);
    if (options_.find_unused && !options_.static_graph && synchronises()) {
      averager_->find_unused(result);
    }
    averager_->ddp().end_forward();
    return result;
  }

  /// Not available: ddp(x) prepares the passes as well.
  template <class... Arguments>
  at::Tensor forward(Arguments&&...) {
    static_assert(sizeof...(Arguments) > 1'000'000,
                  "call ddp(x) instead of ddp.forward(x): it also prepares the backward pass");
    return {};
  }

  /// The module: ddp->train(), ddp->named_parameters().
  Module* operator->() const noexcept { return module_.get(); }
  const std::shared_ptr<Module>& module() const noexcept { return module_; }
  /// The module's parameters, each once: for an optimizer.
  std::vector<at::Tensor> parameters() const { return torch::parameters(*module_); }

  /// Zeroes the gradients in place and restores every `.grad` as a view of its bucket.
  void zero_grad() { averager_->zero_grad(); }

  /// Replaces backward() if the training pass threw on this rank: takes part in the peers' pass
  /// with the current contents of the gradients, so that all ranks can continue. The program must
  /// inform the peers before they step: see ddprun::DistributedDataParallel::cancel_backward(). No
  /// effect without a forward pass that requires a backward pass.
  void cancel_backward() { averager_->cancel_pass(); }

  /// Copies rank 0's buffers, such as running averages, to all ranks. Collective.
  void broadcast_buffers() { averager_->broadcast_buffers(); }

  auto no_sync() { return averager_->ddp().no_sync(); }
  bool synchronises() const { return averager_->ddp().synchronises(); }

  /// With uneven_inputs, every rank calls join() when its batches end. Afterwards all ranks have
  /// the parameters of the rank with the most passes. Does not call broadcast_buffers().
  void join() { averager_->join(); }

  /// `reduced` is called for each bucket whose gradients are averaged, while backward continues,
  /// and may run an optimizer step for these parameters. Parameter indices count the parameters of
  /// ddprun::torch::parameters(module) that require gradients. Empty: none.
  void on_bucket_reduced(std::function<void(const GradientBucket&)> reduced) {
    averager_->ddp().on_bucket_reduced(std::move(reduced));
  }

  /// Continues with other peers after a membership change. Parameters (not buffers) become those of
  /// rank 0 of `next`, and gradients zero. Collective on `next`, where new ranks call the
  /// constructor.
  void reconfigure(ProcessGroup& next) { averager_->reconfigure(next); }

  /// The framework-neutral DistributedDataParallel, for example for its sync timer.
  ddprun::DistributedDataParallel& neutral() { return averager_->ddp(); }

  SyncReport last_step() const { return averager_->ddp().last_step(); }
  SyncReport total() const { return averager_->ddp().total(); }
  std::vector<std::vector<std::size_t>> buckets() const { return averager_->ddp().buckets(); }

 private:
  std::shared_ptr<Module> module_;
  DdpOptions options_;
  std::shared_ptr<detail::Averager> averager_;
};

template <class Module>
DistributedDataParallel(ProcessGroup&, std::shared_ptr<Module>, const DdpOptions& = {})
    -> DistributedDataParallel<Module>;
template <class Holder, class Module = typename Holder::ContainedType>
DistributedDataParallel(ProcessGroup&, const Holder&, const DdpOptions& = {})
    -> DistributedDataParallel<Module>;

}  // namespace ddprun::torch
