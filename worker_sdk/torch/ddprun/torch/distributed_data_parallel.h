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
/// stays usable by itself; its parameters may not be replaced afterwards. Not movable: NoSync
/// refers to it.
template <class Module>
class DistributedDataParallel {
 public:
  /// Checks that ranks agree about the parameters, then takes rank 0's parameters and buffers.
  /// `group` must outlive this. Throws Error.
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
    averager_->install_hooks();
    const bool training = module_->is_training();
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

  /// Takes rank 0's buffers, such as running averages. Collective.
  void broadcast_buffers() { averager_->broadcast_buffers(); }

  auto no_sync() { return averager_->ddp().no_sync(); }
  bool synchronises() const noexcept { return averager_->ddp().synchronises(); }

  /// To be called on every rank when it has no more batches; with uneven_inputs. Afterwards all
  /// ranks have the parameters of the one that went on longest; broadcast_buffers() is not implied.
  void join() { averager_->join(); }

  /// Called for each bucket whose gradients are averaged, while backward goes on: the place for an
  /// optimizer step of these parameters, in the order of Module::parameters() that require
  /// gradients. Empty: nobody.
  void on_bucket_reduced(std::function<void(const GradientBucket&)> reduced) {
    averager_->ddp().on_bucket_reduced(std::move(reduced));
  }

  /// Goes on with other peers after a membership change; parameters (not buffers) become those of
  /// rank 0 of `next`, gradients zero. Collective on `next`, where fresh ranks construct.
  void reconfigure(ProcessGroup& next) { averager_->reconfigure(next); }

  /// The framework-neutral object beneath: the sync timer, for example.
  ddprun::DistributedDataParallel& reducer() { return averager_->ddp(); }

  const SyncReport& last_step() const noexcept { return averager_->ddp().last_step(); }
  SyncReport total() const noexcept { return averager_->ddp().total(); }
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
