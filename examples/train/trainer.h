#pragma once
// Trains the ConvNet on Fashion-MNIST over all ranks of a job. Called by train.cc.

#include "ddprun/process_group.h"
#include "examples/train/train_options.h"

namespace examples {

// Throws std::invalid_argument if the options do not fit the number of ranks, else what libtorch,
// the SDK or the file system throws.
void train(ddprun::ProcessGroup& group, const TrainOptions& options);

}  // namespace examples
