#pragma once
// ZeRO stage 1 around any optimizer of libtorch: each rank keeps the state of its share of the
// parameters only. Included through ddprun/torch.h.
//
//   ddprun::torch::ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(
//       group, model->parameters(), torch::optim::AdamOptions(1e-3));
//   ... loss.backward(); optimizer.step(); ...
//   const std::string state = optimizer.consolidate(0);          // On rank 0, to be saved.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/objects.h"
#include "ddprun/sharding.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {
namespace detail {

// The key of a parameter's state in an optimizer: text in libtorch 1, its address in 2.
template <class Key>
Key state_key(const at::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

inline std::string serialised(const ::torch::optim::Optimizer& optimizer) {
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

// Loads to `device`: the state may have been saved from another one.
inline void deserialise(const std::string& bytes, ::torch::optim::Optimizer& optimizer,
                        at::Device device) {
  std::istringstream in(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(in, device);
  optimizer.load(archive);
}

// The states of `parameters`, as far as there are any.
inline void move_states(::torch::optim::Optimizer& from, ::torch::optim::Optimizer& to,
                        const std::vector<at::Tensor>& parameters) {
  using Key = typename std::decay_t<decltype(from.state())>::key_type;
  for (const at::Tensor& p : parameters) {
    const auto found = from.state().find(state_key<Key>(p));
    if (found != from.state().end() && found->second) {
      to.state()[state_key<Key>(p)] = std::move(found->second);
    }
  }
}

// broadcast_shares() for arrays of the host: one broadcast per rank, of contiguous tensors.
inline void broadcast_packed(ProcessGroup& group,
                             const std::vector<std::vector<std::size_t>>& shares,
                             const std::vector<at::Tensor>& values) {
  use_current_stream(group);
  for (int root = 0; root < group.world_size(); ++root) {
    std::vector<at::Tensor> bytes;
    std::int64_t total = 0;
    for (const std::size_t i : shares[static_cast<std::size_t>(root)]) {
      bytes.push_back(values[i].view({-1}).view(at::kByte));
      total += bytes.back().numel();
    }
    if (total == 0) continue;
    const bool mine = root == group.rank();
    const at::Tensor packed = mine ? at::cat(bytes) : at::empty({total}, bytes.front().options());
    group.broadcast(buffer(group, packed), root);
    std::int64_t at = 0;
    for (const at::Tensor& part : mine ? std::vector<at::Tensor>() : bytes) {
      part.copy_(packed.narrow(0, at, part.numel()));
      at += part.numel();
    }
  }
}

}  // namespace detail

/// Supports one parameter group and no closures. Assigns parameters to ranks as PyTorch's
/// ZeroRedundancyOptimizer does. Only one thread at a time may call it. Movable; a moved-from one
/// may be destroyed or assigned to, and every other call throws Error(bad_argument).
template <class Optimizer>
class ZeroRedundancyOptimizer {
 public:
  /// `options` are those of `Optimizer`, equal on all ranks. A parameter given twice counts once.
  /// Keeps a handle of the group. Communicates nothing. Throws Error if a parameter cannot be
  /// communicated.
  template <class Options>
  ZeroRedundancyOptimizer(ProcessGroup& group, const std::vector<at::Tensor>& parameters,
                          const Options& options)
      : group_(group.share()),
        parameters_(detail::each_once(parameters)),
        make_([options](const std::vector<at::Tensor>& of) {
          return std::make_unique<Optimizer>(of, options);
        }) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& p : parameters_) {
      (void)buffer(group, detail::as_real(p.detach().contiguous()));
      sizes.push_back(p.numel());
    }
    shares_ = partition_greedily(sizes, group.world_size());
    local_ = make_(share_of(group.rank()));
  }

  /// Steps this rank's share, then receives the other shares. Collective; throws Error.
  void step() {
    inside().step();
    share_values();
  }

  /// Like Optimizer::zero_grad(), for all parameters. zero_grad() of DistributedDataParallel keeps
  /// gradients in place and is faster.
  void zero_grad() {
    (void)inside();
    for (at::Tensor& p : parameters_) p.mutable_grad().reset();
  }

  /// The optimizer of this rank's share: for GradScaler, and for learning rate schedulers, which
  /// must make the same changes on all ranks.
  Optimizer& local() { return inside(); }
  const std::vector<std::vector<std::size_t>>& shares() const {
    (void)inside();
    return shares_;
  }

  /// Returns on `root` the state of all parameters as torch::save() writes it for an `Optimizer` of
  /// all parameters, which can load it. Returns an empty string on other ranks. Collective.
  std::string consolidate(int root = 0) {
    const auto parts = gather_bytes(group_, detail::serialised(inside()), root);
    if (group_.rank() != root) return {};
    const auto whole = make_(parameters_);
    whole->param_groups()[0].set_options(local_->param_groups()[0].options().clone());
    for (int r = 0; r < group_.world_size(); ++r) {
      const auto share = share_of(r);
      const auto part = make_(share);
      detail::deserialise(parts[static_cast<std::size_t>(r)], *part, device_of(group_));
      detail::move_states(*part, *whole, share);
    }
    return detail::serialised(*whole);
  }

  /// Loads a result of consolidate() from any world size, or the state of an ordinary `Optimizer`;
  /// each rank keeps its share. As in libtorch, options are not loaded. Throws c10::Error for other
  /// input. Communicates nothing: every rank passes the same bytes.
  void load(const std::string& bytes) {
    Optimizer& mine = inside();
    const auto whole = make_(parameters_);
    detail::deserialise(bytes, *whole, device_of(group_));
    detail::move_states(*whole, mine, share_of(group_.rank()));
  }

 private:
  Optimizer& inside() const {
    if (local_) return *local_;
    throw Error(ErrorKind::bad_argument, {.operation = "ZeroRedundancyOptimizer"},
                "this ZeroRedundancyOptimizer was moved from; use the one that it was moved into");
  }

  std::vector<at::Tensor> share_of(int rank) const {
    std::vector<at::Tensor> share;
    for (const std::size_t i : shares_[static_cast<std::size_t>(rank)]) {
      share.push_back(parameters_[i]);
    }
    return share;
  }

  void share_values() {
    const ::torch::NoGradGuard no_grad;
    std::vector<at::Tensor> flat;  // Shares the memory, except for a parameter of another layout.
    std::vector<Buffer> values;
    for (const at::Tensor& p : parameters_) {
      flat.push_back(p.detach().contiguous());
      values.push_back(detail::memory_of(detail::as_real(flat.back())));
    }
    if (group_.device() < 0) {
      broadcast_shares(group_, shares_, values);
    } else {
      detail::broadcast_packed(group_, shares_, flat);
    }
    for (std::size_t i = 0; i < flat.size(); ++i) {
      if (flat[i].data_ptr() != parameters_[i].data_ptr()) parameters_[i].copy_(flat[i]);
    }
  }

  ProcessGroup group_;
  std::vector<at::Tensor> parameters_;
  std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)> make_;
  std::vector<std::vector<std::size_t>> shares_;
  std::unique_ptr<Optimizer> local_;
};

}  // namespace ddprun::torch
