#pragma once
// ddprun/elastic/job.h for libtorch: modules and optimizers as kept state. Included through
// ddprun/torch.h, as is ElasticGradients (ddprun/torch/elastic_gradients.h).
//
//   ddprun::elastic::Job job;
//   ddprun::torch::keep(job, "model", *model);
//   ddprun::torch::keep(job, "optimizer", sgd);
//   ddprun::torch::ElasticGradients gradients(job, *model, batches);
//   job.run(steps, [&](ddprun::elastic::Step& step) {
//     gradients.backward(step, [&](const std::vector<ddprun::Sample>& samples) {
//       const auto [x, y] = load(samples);
//       return torch::cross_entropy_loss(model->forward(x), y);   // The mean over these samples.
//     });
//     gradients.commit(step, [&] { sgd.step(); });
//   });

#include "ddprun/cxx20.h"

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/job.h"
#include "ddprun/torch/checkpoint.h"
#include "ddprun/torch/parameters.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {
namespace detail {

inline Buffer kept_bytes(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) {
    throw Error(ErrorKind::unsupported, {.operation = "ddprun::torch::keep"},
                name + " is sparse or overlaps itself");
  }
  const auto type = known_type(tensor.scalar_type());  // By which what is not finite is found.
  if (!type) return {tensor.data_ptr(), tensor.nbytes(), DataType::u8};
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *type};
}

}  // namespace detail

/// Keeps the parameters and buffers of `module`, which must outlive job.run() and must no longer be
/// moved to another device or type.
inline void keep(elastic::Job& job, const std::string& name, const ::torch::nn::Module& module) {
  const auto each = [&](const detail::Named& tensors) {
    for (const auto& [part, tensor] : tensors) {
      if (!tensor.defined() || tensor.numel() == 0) continue;
      job.keep(name + "." + part, detail::kept_bytes(name + "." + part, tensor));
    }
  };
  each(detail::each_once(module.named_parameters()));
  each(detail::each_once(module.named_buffers()));
}
template <class Module>
void keep(elastic::Job& job, const std::string& name,
          const ::torch::nn::ModuleHolder<Module>& module) {
  keep(job, name, *module.ptr());
}
/// Keeps the state of `optimizer`, which must outlive job.run().
inline void keep(elastic::Job& job, const std::string& name, ::torch::optim::Optimizer& optimizer) {
  job.keep(
      name, [&optimizer] { return detail::serialised(optimizer); },
      [&optimizer](std::string_view bytes) {
        detail::deserialise(std::string(bytes), optimizer, detail::parameters_device(optimizer));
      });
}

/// The samples' indices in a tensor of i64: for index_select().
inline at::Tensor indices(const std::vector<Sample>& samples) {
  std::vector<std::int64_t> result;
  for (const Sample& sample : samples) result.push_back(sample.index);
  return ::torch::tensor(result, ::torch::kInt64);
}

}  // namespace ddprun::torch
