#pragma once
// From the bytes of a data set to the tensors of one batch. Used by train.

#include <torch/torch.h>

#include "examples/idx.h"

namespace examples {

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
};

enum class Layout {
  plain,          // PyTorch's default: losses are those of train.py, digit for digit.
  channels_last,  // The network takes another path through the kernels, about a fifth faster.
};

// Pixels become floats in 0 .. 1 only now, for the samples of one batch. One channel has the same
// bytes in either layout, so only the strides differ.
inline Batch make_batch(const LabelledImages& set, const std::int64_t* indices, std::int64_t count,
                        Layout layout) {
  const std::size_t pixels = set.images.extents[1] * set.images.extents[2];
  const std::int64_t channel_stride = layout == Layout::plain ? 784 : 1;
  Batch batch{torch::empty_strided({count, 1, 28, 28}, {784, channel_stride, 28, 1}),
              torch::empty({count}, torch::kLong)};
  float* to = batch.images.data_ptr<float>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(indices[i]);
    const std::uint8_t* from = set.images.bytes.data() + index * pixels;
    for (std::size_t p = 0; p < pixels; ++p) *to++ = static_cast<float>(from[p]) / 255.0F;
    labels[i] = set.labels[index];
  }
  return batch;
}

}  // namespace examples
