#pragma once
// DistributedDataParallel for libtorch modules: drives the SDK's class of the same name by autograd
// hooks. Included through ddprun/torch.h.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddprun/distributed_data_parallel.h"
#include "ddprun/process_group.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch::detail {

// The machinery of ddprun::torch::DistributedDataParallel: autograd hooks that drive the
// framework-neutral class.
//
// A hook on each parameter's gradient accumulator marks it ready. Gradients accumulate straight
// into the buckets, as `.grad` is a view of them; if `.grad` was replaced (by a zero_grad() that
// sets gradients to none), the hook copies the gradient and puts the view back.
//
// On a GPU the current stream of a hook is the stream in which the gradient accumulator was created
// and writes; as we keep the accumulators, that is the stream in which the wrapper was constructed.
// All of these are joined into the stream of the pass's first hook, after which buckets are
// reduced, and that stream is joined into that of backward()'s caller.

// Gradient accumulators of autograd and hooks on them, as each release of libtorch has them: a
// shared_ptr<Node>, or in later releases an intrusive one.
using Accumulator =
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <class F>
std::unique_ptr<::torch::autograd::FunctionPostHook> make_hook(F fired) {
  using Hook = ::torch::autograd::utils::LambdaPostHook;
  if constexpr (std::is_constructible_v<Hook, F>) {
    return std::make_unique<Hook>(std::move(fired));
  } else {  // Some releases of 2.x also require what compiled autograd is to do.
    return std::make_unique<Hook>(std::move(fired), [](auto&) {});
  }
}

// Finds the parameters that can get a gradient from a forward pass's result, by walking the
// autograd graph from there, as PyTorch's find_unused_parameters does.

using Node = ::torch::autograd::Node;

// Adds the tensors of a result; false: it holds something with tensors that cannot be found.
inline bool collect(const at::Tensor& tensor, std::vector<at::Tensor>& found) {
  found.push_back(tensor);
  return true;
}
template <class T>
bool collect(const std::vector<T>& items, std::vector<at::Tensor>& found) {
  for (const T& item : items) {
    if (!collect(item, found)) return false;
  }
  return true;
}
template <class... T>
bool collect(const std::tuple<T...>& items, std::vector<at::Tensor>& found) {
  return std::apply([&](const auto&... item) { return (collect(item, found) && ...); }, items);
}
template <class T>
requires(!std::is_convertible_v<const T&, const at::Tensor&>) bool collect(
    const T&, std::vector<at::Tensor>&) {
  return false;
}

inline std::unordered_set<const Node*> reachable(const std::vector<at::Tensor>& results) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const auto& node) {  // Some pointer to a Node.
    if (node && seen.insert(node.get()).second) open.push_back(node.get());
  };
  for (const at::Tensor& t : results) {
    if (t.defined()) visit(t.grad_fn());
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function);
  }
  return seen;
}

// A module's buffers (such as the running averages of batch normalisation), packed so that one
// broadcast per type and device carries their bytes. Buffers in host memory are sent from there,
// also on nccl.
class ModuleBuffers {
 public:
  explicit ModuleBuffers(const ::torch::nn::Module& module) {
    std::map<std::pair<at::ScalarType, bool>, Pack> packs;
    for (const auto& [name, t] : each_once(module.named_buffers())) {
      if (!t.defined() || t.numel() == 0) continue;
      require_plain(name, t);
      Pack& pack = packs[{t.scalar_type(), t.is_cpu()}];
      if (pack.tensors.empty()) pack.name = name;
      pack.tensors.push_back(t);
    }
    for (auto& [key, pack] : packs) {
      std::int64_t count = 0;
      for (const at::Tensor& t : pack.tensors) count += t.numel();
      pack.flat = ::torch::empty({count}, pack.tensors.front().options());
      packs_.push_back(std::move(pack));
    }
  }

  /// Takes rank 0's. Collective.
  void broadcast(ProcessGroup& group) {
    const ::torch::NoGradGuard no_grad;
    use_current_stream(group);
    for (Pack& pack : packs_) {
      if (group.rank() == 0) {
        std::vector<at::Tensor> parts;
        for (const at::Tensor& t : pack.tensors) parts.push_back(t.detach().reshape({-1}));
        at::cat_out(pack.flat, parts);
      }
      const bool on_host = pack.flat.is_cpu();
      const std::string wrong = on_host ? "" : objection(group, pack.flat);
      if (!wrong.empty()) refuse(ErrorKind::bad_argument, pack.name, wrong);
      group.broadcast({pack.flat.data_ptr(), pack.flat.nbytes(), DataType::u8}, 0,
                      {.on_host = on_host});
      if (group.rank() != 0) unpack(pack);
    }
  }

 private:
  struct Pack {        // All buffers that share a type and a device.
    std::string name;  // Name of the first.
    at::Tensor flat;
    std::vector<at::Tensor> tensors;
  };

  [[noreturn]] static void refuse(ErrorKind kind, const std::string& name,
                                  const std::string& text) {
    throw Error(kind, {.operation = "DistributedDataParallel"}, "buffer " + name + " " + text);
  }

  static void require_plain(const std::string& name, const at::Tensor& t) {
    if (t.layout() == at::kStrided && !t.is_quantized()) return;
    refuse(ErrorKind::unsupported, name,
           "is sparse or quantized, and cannot be broadcast; keep it dense, or no buffer");
  }

  static void unpack(const Pack& pack) {
    std::int64_t offset = 0;
    for (const at::Tensor& t : pack.tensors) {
      t.copy_(pack.flat.narrow(0, offset, t.numel()).view(t.sizes()));
      offset += t.numel();
    }
  }

  std::vector<Pack> packs_;
};

}  // namespace ddprun::torch::detail

namespace ddprun::torch {

struct DdpOptions : ddprun::DdpOptions {
  /// Broadcasts rank 0's buffers (such as the running averages of batch normalisation) before each
  /// synchronised training forward pass, as PyTorch does. Ignored with uneven_inputs, because rank
  /// 0 may have no pass left.
  bool broadcast_buffers = true;
};

namespace detail {

// Shared by the hooks and the wrapper. Hooks hold it weakly, so that a module may outlive its
// wrapper.
class Averager : public std::enable_shared_from_this<Averager> {
 public:
  Averager(ProcessGroup& group, const ::torch::nn::Module& module, const DdpOptions& options)
      : group_(group.share()),
        trained_(group_, module),
        may_miss_(options.find_unused || options.static_graph),
        checks_values_(options.checksum_every > 0),
        ddp_(group_, collect_parameters(), options),
        buffers_(module) {
    write_back();
    make_views();
    for (std::size_t i = 0; i < tensors_.size(); ++i) attach(i);
    if (options.broadcast_at_start) broadcast_buffers();
  }

  // Installs missing hooks: all of them at first (not in the constructor: a hook needs
  // weak_from_this()), later those of new accumulators, which a loaded state or set_data() brings.
  void install_hooks() {
    accumulators_.resize(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad()) continue;  // None to install; training passes report it.
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

  void require_unchanged() const { trained_.require_unchanged(); }

  void zero_grad() {
    use_current_stream(group_);
    ddp_.zero_gradients();
    for (std::size_t i = 0; i < tensors_.size(); ++i) attach(i);
  }

  void broadcast_buffers() { buffers_.broadcast(group_); }

  void begin_forward() {
    use_current_stream(group_);
    due_ = ddp_.synchronises() && at::GradMode::is_enabled();
    ddp_.begin_forward();
  }

  // The parameters that the coming backward pass cannot reach from `result`.
  template <class Result>
  void find_unused(const Result& result) {
    unused_.clear();
    std::vector<at::Tensor> tensors;
    if (!collect(result, tensors)) return;  // Gaps are found at the end of the pass.
    const auto nodes = reachable(tensors);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (nodes.count(accumulators_[i].get()) == 0) unused_.push_back(i);
    }
  }

  // The peers' pass continues: this rank takes part in it even if it has not begun its own.
  void cancel_pass() {
    if (!in_pass_ && !due_) return;
    if (!in_pass_) start_pass();
    in_pass_ = due_ = false;
    unused_.clear();
    join_stream();
    ddp_.cancel_backward();
  }

  // Forgets a backward pass that an exception ended.
  void forget_pass() {
    due_ = false;
    if (!std::exchange(in_pass_, false)) return;
    try {
      ddp_.finish_backward();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_argument) throw;  // Parameters are missing, as expected.
    }
  }

  void join() {
    use_current_stream(group_);
    refresh_values();
    ddp_.join();
    write_back();
    zero_grad();
  }

  void reconfigure(ProcessGroup& next) {
    for (const at::Tensor& t : tensors_) require_device(next, "of the module", t);
    use_current_stream(next);
    refresh_values();
    in_pass_ = due_ = false;
    ddp_.reconfigure(next);
    group_ = next.share();
    write_back();
    make_views();
    zero_grad();
  }

  ddprun::DistributedDataParallel& ddp() { return ddp_; }
  bool alone() const { return group_.world_size() == 1; }

 private:
  std::vector<Parameter> collect_parameters() {
    use_current_stream(group_);
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      values_.push_back(tensors_[i].detach().contiguous());  // Shares the memory, as a rule.
      const at::Tensor numbers = as_real(values_.back());
      parameters.push_back({trained_.name(i), trained_.memory(i, numbers), numbers.sizes().vec()});
    }
    arrived_.assign(tensors_.size(), true);
    return parameters;
  }

  // Updates the parameters' places and values: loading a state may have moved them.
  void refresh_values() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      values_[i] = tensors_[i].detach().contiguous();
      ddp_.set_value(i, memory_of(as_real(values_[i])));
    }
  }

  // A parameter of another layout has a contiguous copy of its own in values_.
  void write_back() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].data_ptr() != values_[i].data_ptr()) tensors_[i].copy_(values_[i]);
    }
  }

  // Gradients that were views become views of the present buckets.
  void make_views() {
    const std::vector<at::Tensor> before = std::move(views_);
    views_.clear();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Buffer g = ddp_.gradient(i);
      auto memory = ddp_.gradient_memory(i);
      views_.push_back(at::for_blob(g.data, tensors_[i].sizes())
                           .deleter([memory](void*) {})
                           .options(tensors_[i].options())
                           .target_device(tensors_[i].device())
                           .make_tensor());
      at::Tensor& grad = tensors_[i].mutable_grad();
      const bool was_view =
          !before.empty() && grad.defined() && grad.data_ptr() == before[i].data_ptr();
      if (was_view) grad = views_[i];
    }
  }

  // Called by autograd once for each parameter and pass.
  void gradient_arrived(std::size_t i) {
    if (!in_pass_) begin_pass();
    arrived_[i] = true;
    attach(i, /*keep=*/true);
    join_stream();
    ddp_.mark_ready(i);
  }

  void join_stream() {
    if (!stream_) return;
    put_behind(current_stream(stream_->device()), *stream_);
    group_.use_stream(native_stream(*stream_));  // SyncBatchNorm may have set another one.
  }

  void begin_pass() {
    trained_.require_unchanged();
    start_pass();
    auto finish = [self = shared_from_this()] { self->finish_pass(); };
    ::torch::autograd::Engine::get_default_engine().queue_callback(std::move(finish));
  }

  void start_pass() {
    use_current_stream(group_);
    if (group_.device() >= 0) stream_ = current_stream(device_of(group_));
    if (ddp_.synchronises()) {
      if (checks_values_) refresh_values();
      if (may_miss_) clear_expected_gaps();
    }
    ddp_.begin_backward(unused_);
    if (views_[0].data_ptr() != ddp_.gradient(0).data) make_views();
    arrived_.assign(tensors_.size(), false);
    in_pass_ = true;
  }

  void finish_pass() {
    in_pass_ = due_ = false;
    const bool synchronised = ddp_.synchronises();
    if (may_miss_ && synchronised) {
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (!arrived_[i] && !gap_[i]) clear_gap(i);
      }
    }
    unused_.clear();
    join_stream();
    ddp_.finish_backward();
    if (stream_) put_behind(*stream_, current_stream(stream_->device()));
    if (may_miss_ && synchronised) fill_gaps();
  }

  // A parameter without a gradient contributes zeros. Gaps known before the pass may travel with
  // the first buckets, so they are cleared before it; the others at its end.
  void clear_expected_gaps() {
    gap_.assign(tensors_.size(), false);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!arrived_[i]) clear_gap(i);  // From the pass before: matters for static graphs.
    }
    for (const std::size_t i : unused_) clear_gap(i);
  }

  void clear_gap(std::size_t i) {
    if (gap_[i] || tensors_[i].grad().defined()) return;
    gap_[i] = true;
    views_[i].zero_();
  }

  // All ranks get a gradient that any rank had; one that no rank had stays undefined.
  void fill_gaps() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (gap_[i] && ddp_.used(i)) attach(i);
    }
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

  ProcessGroup group_;
  const TrainedParameters trained_;
  const bool may_miss_;
  const bool checks_values_;
  const std::vector<at::Tensor>& tensors_ = trained_.tensors();
  std::vector<at::Tensor> values_;
  std::vector<bool> arrived_;  // In the current pass, or in the last one.
  ddprun::DistributedDataParallel ddp_;
  ModuleBuffers buffers_;
  std::vector<at::Tensor> views_;
  std::vector<Accumulator> accumulators_;
  std::vector<std::size_t> unused_;
  std::vector<bool> gap_;  // Had no gradient in this pass, and contributed zeros.
  bool in_pass_ = false;
  bool due_ = false;  // forward() needs a synchronised pass, which has not ended yet.
  std::optional<c10::Stream> stream_;  // The pass's stream, on a GPU.
};

}  // namespace detail

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
