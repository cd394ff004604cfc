#pragma once
// The command line of train.

#include <cstdint>
#include <string>
#include <vector>

#include "examples/train/schedule.h"

namespace examples {

struct TrainOptions {
  int epochs = 2;
  std::int64_t batch_size = 100;       // Per rank.
  std::int64_t global_batch_size = 0;  // Of all ranks together; 0: batch_size times the ranks.
  double lr = 1e-2;
  LrScale lr_scale = LrScale::none;
  Decay decay = Decay::none;
  double min_lr = 0;
  std::int64_t warmup = 0;  // Steps.
  std::uint64_t seed = 0;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string checkpoint;   // Empty: none.
  std::string metrics;      // Empty: none.
  std::string tensorboard;  // A folder. Empty: none.
  std::string init_from;    // Empty: none.
  std::vector<std::string> freeze;
  bool sync_bn = false;
  bool batch_norm = true;
  bool double_precision = false;
  bool channels_last = false;
  std::int64_t max_steps = 0;  // Per epoch; 0: all.
  bool check_weights = false;
  bool print_losses = false;
  std::string device = "auto";  // Or "cuda", "cpu".
  bool help = false;
};

// Throws std::invalid_argument with one sentence that names the option.
TrainOptions parse_train_options(const std::vector<std::string>& arguments);

// Is the model to be trained on a GPU, over the backend nccl? `gpus`: how many libtorch sees;
// `backend`: the value of DDPRUN_BACKEND. Throws std::invalid_argument if --device is not
// available.
bool wants_gpu(const TrainOptions& options, std::size_t gpus, const std::string& backend);

// The text of --help.
std::string train_usage();

}  // namespace examples
