#pragma once
// A module's buffers (such as the running averages of batch normalisation), packed so that one
// broadcast per type and device carries their bytes. Buffers in host memory are sent from there,
// also on nccl. Used by distributed_data_parallel.h.

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/torch/device.h"
#include "ddprun/torch/parameters.h"

namespace ddprun::torch::detail {

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
