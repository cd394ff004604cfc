#pragma once
// A module's buffers (such as the running averages of batch normalisation), packed so that one
// broadcast for each type carries them. Used by distributed_data_parallel.h.

#include <torch/torch.h>

#include <map>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch::detail {

class ModuleBuffers {
 public:
  explicit ModuleBuffers(const ::torch::nn::Module& module) {
    std::map<at::ScalarType, Pack> packs;
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

  /// Takes rank 0's. Collective.
  void broadcast(ProcessGroup& group) {
    const ::torch::NoGradGuard no_grad;
    for (Pack& pack : packs_) {
      if (group.rank() == 0) {
        std::vector<at::Tensor> parts;
        for (const at::Tensor& t : pack.tensors) parts.push_back(t.detach().reshape({-1}));
        at::cat_out(pack.flat, parts);
      }
      group.broadcast(buffer(pack.flat), 0);
      if (group.rank() != 0) unpack(pack);
    }
  }

 private:
  struct Pack {  // All buffers that share a type.
    at::Tensor flat;
    std::vector<at::Tensor> tensors;
  };

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
