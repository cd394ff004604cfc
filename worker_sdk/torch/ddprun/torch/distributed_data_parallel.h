#pragma once
// DistributedDataParallel for libtorch modules: the SDK's class of that name, driven by autograd
// hooks. Included through ddprun/torch.h.
//
// A hook on each parameter's gradient accumulator marks the parameter ready. Gradients accumulate
// straight into the buckets, as `.grad` is a view of them; where somebody replaced `.grad`
// (zero_grad() of an optimizer that sets gradients to none), the hook copies the gradient and puts
// the view back.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/distributed_data_parallel.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {

struct DdpOptions : ddprun::DdpOptions {
  /// Before each training forward pass that is synchronised, take rank 0's buffers (such as the
  /// running averages of batch normalisation), as PyTorch does.
  bool broadcast_buffers = true;
};

namespace detail {

// All buffers of a module that share a type, in one array, so that one broadcast carries them.
struct BufferPack {
  at::Tensor flat;
  std::vector<at::Tensor> tensors;
};

// What hooks and the wrapper share. Hooks hold it weakly, so that a module may outlive its wrapper.
class Averager : public std::enable_shared_from_this<Averager> {
 public:
  Averager(ProcessGroup& group, const ::torch::nn::Module& module, const DdpOptions& options)
      : group_(group), ddp_(group, collect(module), options) {
    write_back();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Buffer g = ddp_.gradient(i);
      auto memory = ddp_.gradient_memory(i);
      views_.push_back(::torch::from_blob(
          g.data, tensors_[i].sizes(), [memory](void*) {}, tensors_[i].options()));
      tensors_[i].mutable_grad() = views_.back();
    }
    pack_buffers(module);
    if (options.broadcast_at_start) broadcast_buffers();
  }

  // Puts a hook where none is: everywhere at first (not in the constructor: a hook needs
  // weak_from_this()), later where loading a state or set_data() gave a parameter a new
  // accumulator.
  void install_hooks() {
    accumulators_.resize(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto accumulator = ::torch::autograd::impl::grad_accumulator(tensors_[i]);
      if (accumulator == accumulators_[i]) continue;
      auto fired = [weak = weak_from_this(), i](const ::torch::autograd::variable_list& outputs,
                                                const ::torch::autograd::variable_list&) {
        if (auto self = weak.lock()) self->gradient_arrived(i);
        return outputs;
      };
      accumulator->add_post_hook(make_hook(std::move(fired)));
      accumulators_[i] = std::move(accumulator);  // Parameters hold theirs only weakly.
    }
  }

  void zero_grad() {
    ddp_.zero_gradients();
    for (std::size_t i = 0; i < tensors_.size(); ++i) attach(i);
  }

  void broadcast_buffers() {
    const ::torch::NoGradGuard no_grad;
    for (BufferPack& pack : packs_) {
      if (group_.rank() == 0) {
        std::vector<at::Tensor> parts;
        for (const at::Tensor& t : pack.tensors) parts.push_back(t.detach().reshape({-1}));
        at::cat_out(pack.flat, parts);
      }
      group_.broadcast(buffer(pack.flat), 0);
      if (group_.rank() != 0) unpack(pack);
    }
  }

  // A backward pass that ended by an exception never came to its end; forget it.
  void forget_pass() {
    if (!std::exchange(in_pass_, false)) return;
    try {
      ddp_.finish_backward();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_argument) throw;  // Of course parameters were missing.
    }
  }

  ddprun::DistributedDataParallel& ddp() { return ddp_; }
  bool alone() const { return group_.world_size() == 1; }

 private:
  template <class F>
  static std::unique_ptr<::torch::autograd::FunctionPostHook> make_hook(F fired) {
    using Hook = ::torch::autograd::utils::LambdaPostHook;
    if constexpr (std::is_constructible_v<Hook, F>) {
      return std::make_unique<Hook>(std::move(fired));
    } else {  // Some releases of 2.x also want to hear what compiled autograd shall do.
      return std::make_unique<Hook>(std::move(fired), [](auto&) {});
    }
  }

  std::vector<Parameter> collect(const ::torch::nn::Module& module) {
    std::vector<Parameter> parameters;
    for (const auto& item : module.named_parameters()) {
      if (!item.value().requires_grad()) continue;
      tensors_.push_back(item.value());
      values_.push_back(item.value().detach().contiguous());  // The same memory, as a rule.
      parameters.push_back({item.key(), buffer(values_.back()), item.value().sizes().vec()});
    }
    return parameters;
  }

  // The values of rank 0 are in values_; a parameter of another layout got a copy of its own there.
  void write_back() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].data_ptr() != values_[i].data_ptr()) tensors_[i].copy_(values_[i]);
    }
    values_.clear();
  }

  void pack_buffers(const ::torch::nn::Module& module) {
    std::map<at::ScalarType, BufferPack> packs;
    for (const at::Tensor& t : module.buffers()) {
      if (t.numel() > 0) packs[t.scalar_type()].tensors.push_back(t);
    }
    for (auto& [type, pack] : packs) {
      std::int64_t count = 0;
      for (const at::Tensor& t : pack.tensors) count += t.numel();
      pack.flat = ::torch::empty({count}, type);
      packs_.push_back(std::move(pack));
    }
  }

  static void unpack(const BufferPack& pack) {
    std::int64_t offset = 0;
    for (const at::Tensor& t : pack.tensors) {
      t.copy_(pack.flat.narrow(0, offset, t.numel()).view(t.sizes()));
      offset += t.numel();
    }
  }

  // Called by autograd once for each parameter and pass.
  void gradient_arrived(std::size_t i) {
    if (!ddp_.synchronises()) return;
    if (!in_pass_) begin_pass();
    attach(i, /*keep=*/true);
    ddp_.mark_ready(i);
  }

  void begin_pass() {
    ddp_.begin_backward();
    in_pass_ = true;
    auto finish = [self = shared_from_this()] {
      self->in_pass_ = false;
      self->ddp_.finish_backward();
    };
    ::torch::autograd::Engine::get_default_engine().queue_callback(std::move(finish));
  }

  // Makes `.grad` the bucket's view again; with `keep`, after copying what it holds.
  void attach(std::size_t i, bool keep = false) {
    at::Tensor& grad = tensors_[i].mutable_grad();
    if (grad.defined() && grad.data_ptr() == views_[i].data_ptr()) return;
    if (keep && grad.defined()) {
      const ::torch::NoGradGuard no_grad;
      views_[i].copy_(grad);
    }
    grad = views_[i];
  }

  ProcessGroup& group_;
  std::vector<at::Tensor> tensors_;  // The parameters; filled by collect(), so before ddp_.
  std::vector<at::Tensor> values_;
  ddprun::DistributedDataParallel ddp_;
  std::vector<at::Tensor> views_;
  std::vector<std::shared_ptr<::torch::autograd::Node>> accumulators_;
  std::vector<BufferPack> packs_;
  bool in_pass_ = false;
};

}  // namespace detail

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
    if (options_.broadcast_buffers && !averager_->alone() && module_->is_training() &&
        synchronises()) {
      broadcast_buffers();
    }
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  /// Zeroes the gradients in place and makes every `.grad` a view of its bucket again.
  void zero_grad() { averager_->zero_grad(); }

  /// Takes rank 0's buffers, such as running averages. Collective.
  void broadcast_buffers() { averager_->broadcast_buffers(); }

  auto no_sync() { return averager_->ddp().no_sync(); }
  bool synchronises() const noexcept { return averager_->ddp().synchronises(); }
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
