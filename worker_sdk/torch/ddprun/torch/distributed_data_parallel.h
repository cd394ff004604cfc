#pragma once
// DistributedDataParallel for libtorch modules: the SDK's class of that name, driven by autograd
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
/// stays usable by itself; its parameters may not be replaced afterwards. One that is frozen,
/// unfrozen or of another type or device by the next training pass is an Error(bad_argument) with
/// its name. Not movable: NoSync refers to it.
template <class Module>
class DistributedDataParallel {
 public:
  /// Checks that ranks agree about the parameters, then takes rank 0's parameters and buffers.
  /// A parameter that modules share travels once. Shares the group. Throws Error.
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

  /// The module's forward(), with rank 0's buffers if options ask for it. Training passes must come
  /// through here.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
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

  /// Zeroes the gradients in place and makes every `.grad` a view of its bucket again.
  void zero_grad() { averager_->zero_grad(); }

  /// Instead of the backward() of a training pass that threw, on this rank: takes part in the pass
  /// of the peers with what the gradients hold, so that they and this rank may go on. They must
  /// hear of it before they step: see ddprun::DistributedDataParallel::cancel_backward(). Without a
  /// forward() that asks for a backward pass it does nothing.
  void cancel_backward() { averager_->cancel_pass(); }

  /// Takes rank 0's buffers, such as running averages. Collective.
  void broadcast_buffers() { averager_->broadcast_buffers(); }

  auto no_sync() { return averager_->ddp().no_sync(); }
  bool synchronises() const { return averager_->ddp().synchronises(); }

  /// To be called on every rank when it has no more batches; with uneven_inputs. Afterwards all
  /// ranks have the parameters of the one that went on longest; broadcast_buffers() is not implied.
  void join() { averager_->join(); }

  /// Called for each bucket whose gradients are averaged, while backward goes on: the place for an
  /// optimizer step of these parameters, in the order of those of ddprun::torch::parameters(module)
  /// that require gradients. Empty: nobody.
  void on_bucket_reduced(std::function<void(const GradientBucket&)> reduced) {
    averager_->ddp().on_bucket_reduced(std::move(reduced));
  }

  /// Goes on with other peers after a membership change; parameters (not buffers) become those of
  /// rank 0 of `next`, gradients zero. Collective on `next`, where fresh ranks construct.
  void reconfigure(ProcessGroup& next) { averager_->reconfigure(next); }

  /// The framework-neutral object beneath: the sync timer, for example.
  ddprun::DistributedDataParallel& reducer() { return averager_->ddp(); }

  SyncReport last_step() const { return averager_->ddp().last_step(); }
  SyncReport total() const { return averager_->ddp().total(); }
  std::vector<std::vector<std::size_t>> buckets() const { return averager_->ddp().buckets(); }
  const std::shared_ptr<Module>& module() const noexcept { return module_; }

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
