#pragma once
// Checkpoints of what a libtorch program trains, written by all ranks. Included through
// ddprun/torch.h.
//
//   ddprun::CheckpointWriter writer(group, "/shared/run7", {.keep = 3});
//   const auto step = ddprun::torch::load_latest(group, "/shared/run7", {ddp, optimizer, sampler});
//   ...
//   ddprun::torch::save_async(group, writer, step, {ddp, optimizer, sampler});
//
// An elastic job loads before it has a group, and saves the units of its sums as well:
//
//   if (const auto step = ddprun::torch::load_latest("/shared/run7", {model, sgd, gradients})) {
//     job.resume(*step);
//   }
//   job.between(100, [&](ddprun::ProcessGroup& group) {
//     ddprun::CheckpointWriter writer(group, "/shared/run7", {.keep = 3});
//     ddprun::torch::save_async(group, writer, job.committed(), {model, sgd, gradients});
//     writer.wait();
//   });
//
// Any number of ranks may load it. Arrays in the checkpoint have the names of their tensors, after
// the number of the object in the list: "0.layer.weight".

#include <torch/torch.h>

#include <array>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/torch/collectives.h"
#include "ddprun/torch/distributed_data_parallel.h"
#include "ddprun/torch/distributed_sampler.h"
#include "ddprun/torch/tensor.h"
#include "ddprun/torch/zero_redundancy_optimizer.h"

namespace ddprun::torch {
namespace detail {

// The pieces that this rank saves, and the memory of those that are copies.
struct SavedPieces {
  std::vector<CheckpointPiece> pieces;
  std::vector<std::shared_ptr<void>> memory;
};

// Saves from a copy in host memory: for a trained tensor, which is equal on all ranks, this rank's
// share; for others, such as running averages, rank 0's.
inline void save_tensor(const ProcessGroup& group, std::string name, const at::Tensor& tensor,
                        SavedPieces& saved) {
  const bool shared = tensor.requires_grad();
  if (tensor.numel() == 0 || (!shared && group.rank() != 0)) return;
  const at::Tensor here = tensor.detach().cpu().contiguous();
  saved.memory.push_back(std::make_shared<at::Tensor>(here));
  saved.pieces.push_back(shared ? even_piece(group, std::move(name), contents(here))
                                : CheckpointPiece{std::move(name), contents(here)});
}

inline void load_tensor(const Checkpoint& checkpoint, const std::string& name,
                        const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const ::torch::NoGradGuard no_grad;
  const at::Tensor here = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  const Buffer whole = contents(here);
  const Checkpoint::Array* const found = checkpoint.find(name);
  if (found && found->count != whole.count) {
    throw Error(ErrorKind::bad_argument, {.operation = "load_latest"},
                "the checkpoint has " + std::to_string(found->count) + " elements of " + name +
                    ", the program " + std::to_string(whole.count));
  }
  checkpoint.read(name, whole);
  tensor.detach().copy_(here);
}

// Bytes that only rank 0 saves.
inline void save_bytes(const ProcessGroup& group, std::string name, std::string bytes,
                       SavedPieces& saved) {
  if (group.rank() != 0) return;
  const auto held = std::make_shared<std::string>(std::move(bytes));
  saved.memory.push_back(held);
  saved.pieces.push_back({std::move(name), {held->data(), held->size(), DataType::u8}});
}

inline std::string load_bytes(const Checkpoint& checkpoint, const std::string& name) {
  const Checkpoint::Array* const found = checkpoint.find(name);
  std::string bytes(found ? found->count : 1, '\0');
  checkpoint.read(name, {bytes.data(), bytes.size(), DataType::u8});
  return bytes;
}

// The device of the parameters: the state of an optimizer may have been saved from another one.
inline at::Device parameters_device(const ::torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return at::kCPU;
}

// ElasticGradients, GradientSums, or an object of the program's own.
template <class T>
concept HasBytes = requires(T& object, std::string_view bytes) {
  { std::as_const(object).state() } -> std::same_as<std::string>;
  object.restore(bytes);
};

}  // namespace detail

/// An object that a checkpoint contains: a module, its wrapper, an optimizer (also one with sharded
/// state), a sampler, or an object with state() and restore() as those of ElasticGradients. Refers
/// to the object.
class Checkpointed {
 public:
  Checkpointed(::torch::nn::Module& module)
      : save_(
            [&module](ProcessGroup& group, const std::string& prefix, detail::SavedPieces& saved) {
              each(module, [&](const std::string& name, const at::Tensor& tensor) {
                detail::save_tensor(group, prefix + name, tensor, saved);
              });
            }),
        load_([&module](const std::string& prefix, const Checkpoint& from) {
          each(module, [&](const std::string& name, const at::Tensor& tensor) {
            detail::load_tensor(from, prefix + name, tensor);
          });
        }) {}
  template <class Module>
  Checkpointed(const ::torch::nn::ModuleHolder<Module>& module) : Checkpointed(*module.ptr()) {}
  template <class Module>
  Checkpointed(DistributedDataParallel<Module>& ddp) : Checkpointed(*ddp.module()) {}

  Checkpointed(::torch::optim::Optimizer& optimizer)
      : save_([&optimizer](ProcessGroup& group, const std::string& prefix,
                           detail::SavedPieces& saved) {
          std::string state = group.rank() == 0 ? detail::serialised(optimizer) : "";
          detail::save_bytes(group, prefix + "state", std::move(state), saved);
        }),
        load_([&optimizer](const std::string& prefix, const Checkpoint& from) {
          detail::deserialise(detail::load_bytes(from, prefix + "state"), optimizer,
                              detail::parameters_device(optimizer));
        }) {}
  template <class Optimizer>
  Checkpointed(ZeroRedundancyOptimizer<Optimizer>& optimizer)
      : save_([&optimizer](ProcessGroup& group, const std::string& prefix,
                           detail::SavedPieces& saved) {
          detail::save_bytes(group, prefix + "state", optimizer.consolidate(0), saved);
        }),
        load_([&optimizer](const std::string& prefix, const Checkpoint& from) {
          optimizer.load(detail::load_bytes(from, prefix + "state"));
        }) {}

  Checkpointed(DistributedSampler& sampler) : Checkpointed(&sampler) {}
  Checkpointed(ddprun::DistributedSampler& sampler) : Checkpointed(&sampler) {}

  template <detail::HasBytes Object>
  Checkpointed(Object& object)
      : save_(
            [&object](ProcessGroup& group, const std::string& prefix, detail::SavedPieces& saved) {
              detail::save_bytes(group, prefix + "state", object.state(), saved);
            }),
        load_([&object](const std::string& prefix, const Checkpoint& from) {
          object.restore(detail::load_bytes(from, prefix + "state"));
        }) {}

 private:
  using Save = std::function<void(ProcessGroup&, const std::string&, detail::SavedPieces&)>;
  using Load = std::function<void(const std::string&, const Checkpoint&)>;

  template <class Sampler>
  explicit Checkpointed(Sampler* sampler)
      : save_(
            [sampler](ProcessGroup& group, const std::string& prefix, detail::SavedPieces& saved) {
              const SamplerState now = sampler->state();
              detail::save_tensor(group, prefix + "epoch_and_consumed",
                                  at::tensor({now.epoch, now.consumed}, at::kLong), saved);
            }),
        load_([sampler](const std::string& prefix, const Checkpoint& from) {
          std::array<std::int64_t, 2> state{};
          from.read(prefix + "epoch_and_consumed", ddprun::buffer(state.data(), state.size()));
          sampler->load({.epoch = state[0], .consumed = state[1]});
        }) {}

  template <class Visit>
  static void each(const ::torch::nn::Module& module, const Visit& visit) {
    for (const auto& [name, tensor] : detail::each_once(module.named_parameters())) {
      visit(name, tensor);
    }
    for (const auto& [name, tensor] : detail::each_once(module.named_buffers())) {
      if (tensor.defined()) visit(name, tensor);
    }
  }

  static void load_all(const Checkpoint& checkpoint, std::initializer_list<Checkpointed> objects) {
    int number = 0;
    for (const Checkpointed& object : objects) {
      object.load_(std::to_string(number++) + ".", checkpoint);
    }
  }

  friend void save_async(ProcessGroup&, CheckpointWriter&, std::int64_t,
                         std::initializer_list<Checkpointed>);
  friend std::optional<std::int64_t> load_latest(ProcessGroup&, const std::string&,
                                                 std::initializer_list<Checkpointed>);
  friend std::optional<std::int64_t> load_latest(const std::string&,
                                                 std::initializer_list<Checkpointed>);

  Save save_;
  Load load_;
};

/// Saves the objects while training continues: CheckpointWriter::save_async(). Buffers, frozen
/// parameters, and the states of all objects but modules, are those of rank 0. Collective.
inline void save_async(ProcessGroup& group, CheckpointWriter& writer, std::int64_t step,
                       std::initializer_list<Checkpointed> objects) {
  detail::SavedPieces saved;
  int number = 0;
  for (const Checkpointed& object : objects) {
    object.save_(group, std::to_string(number++) + ".", saved);
  }
  writer.save_async(step, saved.pieces);
}

/// Loads the newest complete checkpoint in `folder` into the same list of objects, on every rank,
/// and returns its step; returns nothing and changes nothing if there is none. Modules may be
/// wrapped before or after. Collective. Throws Error(bad_argument) if an object does not fit.
inline std::optional<std::int64_t> load_latest(ProcessGroup& group, const std::string& folder,
                                               std::initializer_list<Checkpointed> objects) {
  const auto path = latest_checkpoint(group, folder);
  if (!path) return {};
  const Checkpoint checkpoint(*path);
  Checkpointed::load_all(checkpoint, objects);
  return checkpoint.step();
}

/// Like load_latest() above, but without a group, as before elastic::Job::run(): each process reads
/// the folder itself. Processes that find different checkpoints continue from the newest of them
/// only in an elastic job, which takes `job.resume(step)`; with fixed ranks use the form with a
/// group.
inline std::optional<std::int64_t> load_latest(const std::string& folder,
                                               std::initializer_list<Checkpointed> objects) {
  return ddprun::load_latest(
      folder, [&](const Checkpoint& checkpoint) { Checkpointed::load_all(checkpoint, objects); });
}

}  // namespace ddprun::torch
