#pragma once
// Which parameters of a model are trained, and its weights before the first step. Used by
// trainer.cc.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace examples {

// Parameters named `prefix`, or `prefix` and a dot and more, are not trained. To be called before
// DistributedDataParallel takes the model. Throws std::invalid_argument if no parameter has a
// prefix, or if all have one.
void freeze(torch::nn::Module& model, const std::vector<std::string>& prefixes);

// Like model.train(), except that frozen layers normalise with the statistics that they have, which
// then stay as they are.
void begin_training(torch::nn::Module& model, const std::vector<std::string>& prefixes);

// The parameters for the optimizer.
std::vector<torch::Tensor> trained_parameters(const torch::nn::Module& model);

// Collective: rank 0 reads `path`, and all ranks take the tensors that have the name and the shape
// of one of the model's. The file is a checkpoint of train, or was saved by torch::save of a
// module, or by Python's torch.save(dict(model.state_dict())), also as "model" of a larger
// dictionary, also of a model that was wrapped in DistributedDataParallel. Returns what was taken
// and what was not, in lines. Throws std::runtime_error if nothing was.
std::string init_from(const std::string& path, ddprun::ProcessGroup& group,
                      torch::nn::Module& model);

}  // namespace examples
