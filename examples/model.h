#pragma once
// The ConvNet of train and train.py: two blocks of convolution, batch normalisation, ReLU and
// pooling, and one linear layer. 28 x 28 pixels in, ten scores out.

#include <torch/torch.h>

#include "ddprun/torch.h"

namespace examples {

enum class Norm { batch, synchronised, none };

class ConvNetImpl : public torch::nn::Module {
 public:
  // The group of Norm::synchronised.
  explicit ConvNetImpl(Norm norm, ddprun::ProcessGroup* group = nullptr) {
    namespace nn = torch::nn;
    const auto block = [&](std::int64_t in, std::int64_t out) {
      layers_->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 5).padding(2)));
      if (norm == Norm::batch) layers_->push_back(nn::BatchNorm2d(out));
      if (norm == Norm::synchronised) {
        layers_->push_back(
            ddprun::torch::SyncBatchNorm(*group, ddprun::torch::SyncBatchNormOptions{out}));
      }
      layers_->push_back(nn::ReLU(nn::ReLUOptions(/*inplace=*/true)));
      layers_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2)));
    };
    block(1, 16);
    block(16, 32);
    layers_->push_back(nn::Flatten());
    layers_->push_back(nn::Linear(7 * 7 * 32, 10));
    register_module("layers", layers_);
  }

  torch::Tensor forward(const torch::Tensor& images) { return layers_->forward(images); }

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(ConvNet);

// FNV-1a over everything that the model has learnt.
inline std::uint64_t hash_of(const ConvNet& model) {
  std::uint64_t h = 0xcbf29ce484222325U;
  auto tensors = model->parameters();
  for (const auto& buffer : model->buffers()) tensors.push_back(buffer);
  for (const torch::Tensor& t : tensors) {
    const torch::Tensor flat = t.detach().cpu().contiguous();
    const auto* bytes = static_cast<const std::uint8_t*>(flat.data_ptr());
    for (std::size_t i = 0; i < flat.nbytes(); ++i) h = (h ^ bytes[i]) * 0x100000001b3U;
  }
  return h;
}

}  // namespace examples
