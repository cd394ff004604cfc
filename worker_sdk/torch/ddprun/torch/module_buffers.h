#pragma once
// A module's buffers (such as the running averages of batch normalisation), packed so that one
// broadcast for each type and device carries them. Those of the host travel as such on nccl, too.
// Used by distributed_data_parallel.h.

#include <torch/torch.h>

#include <map>
#include <utility>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/device.h"

namespace ddprun::torch::detail {

class ModuleBuffers {
 public:
  explicit ModuleBuffers(const ::torch::nn::Module& module) {
    std::map<std::pair<at::ScalarType, bool>, Pack> packs;
    for (const at::Tensor& t : module.buffers()) {
      if (t.numel() > 0) packs[{t.scalar_type(), t.is_cpu()}].tensors.push_back(t);
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
      group.broadcast(on_host ? buffer(pack.flat) : buffer(group, pack.flat), 0,
                      {.on_host = on_host});
      if (group.rank() != 0) unpack(pack);
    }
  }

 private:
  struct Pack {  // All buffers that share a type and a device.
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
