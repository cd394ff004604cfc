#pragma once
// What train needs to continue after a restart: weights, optimizer state and progress.

#include <torch/torch.h>

#include <optional>
#include <string>

#include "examples/model.h"

namespace examples {

struct TrainState {
  ConvNet model{nullptr};
  torch::optim::SGD* optimizer = nullptr;
  std::int64_t epochs_done = 0;
  std::string kind;  // Must be equal for weights to fit: "batch normalisation", ...
};

// Collective: the content of `path`, read by rank 0, or std::nullopt if there is no such file. If
// rank 0 cannot read it, all ranks throw std::runtime_error.
std::optional<std::string> read_and_share(const std::string& path, ddprun::ProcessGroup& group);

// Rank 0 only. Throws std::runtime_error; an older file is intact then.
void save_checkpoint(const std::string& path, const TrainState& state);

// Collective: rank 0 reads, all ranks get the same bytes. False if there is no file. Throws on
// every rank if it does not fit.
bool load_checkpoint(const std::string& path, ddprun::ProcessGroup& group, TrainState& state);

}  // namespace examples
