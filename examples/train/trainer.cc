#include "examples/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddprun/distributed_sampler.h"
#include "ddprun/torch.h"
#include "examples/batch.h"
#include "examples/idx.h"
#include "examples/model.h"
#include "examples/train/checkpoint.h"
#include "examples/train/report.h"
#include "examples/train/schedule.h"
#include "examples/train/training_log.h"
#include "examples/train/weights.h"

namespace examples {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kMomentum = 0.9;
constexpr std::int64_t kEvaluationBatch = 500;

// The launcher may not have shared out the cores of this machine; torch by itself would take all of
// them in every worker.
void share_cores(const ddprun::Identity& identity) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  torch::set_num_threads(std::max(1, cores / std::max(1, identity.local_world_size)));
}

std::int64_t batch_of_rank(const TrainOptions& options, int world_size) {
  if (options.global_batch_size == 0) return options.batch_size;
  if (options.global_batch_size % world_size != 0) {
    throw std::invalid_argument("--global-batch-size " + std::to_string(options.global_batch_size) +
                                " cannot be divided among " + std::to_string(world_size) +
                                " ranks");
  }
  return options.global_batch_size / world_size;
}

Norm norm_of(const TrainOptions& options) {
  if (!options.batch_norm) return Norm::none;
  return options.sync_bn ? Norm::synchronised : Norm::batch;
}

ConvNet make_model(const TrainOptions& options, ddprun::ProcessGroup& group) {
  torch::manual_seed(options.seed);
  ConvNet model(norm_of(options), &group);
  model->to(ddprun::torch::device_of(group));
  if (options.double_precision) model->to(torch::kDouble);
  freeze(*model, options.freeze);
  return model;
}

// Checkpoints of one kind cannot be read by a model of another.
std::string kind_of(const TrainOptions& options) {
  std::string kind = options.batch_norm ? "batch normalisation" : "no normalisation";
  if (options.double_precision) kind += " in f64";
  for (const std::string& prefix : options.freeze) kind += ", frozen " + prefix;
  return kind;
}

Schedule schedule_of(const TrainOptions& options, int world_size, std::int64_t steps) {
  if (options.warmup >= steps) {
    throw std::invalid_argument("--warmup " + std::to_string(options.warmup) +
                                " is not shorter than the training, which has " +
                                std::to_string(steps) + " steps");
  }
  return {.lr = scaled_lr(options.lr, options.lr_scale, world_size),
          .decay = options.decay,
          .min_lr = options.min_lr,
          .warmup = options.warmup,
          .steps = steps};
}

class Trainer {
 public:
  Trainer(ddprun::ProcessGroup& group, const TrainOptions& options)
      : group_(group),
        options_(options),
        batch_size_(batch_of_rank(options, group.world_size())),
        device_(ddprun::torch::device_of(group)),
        layout_(options.channels_last ? Layout::channels_last : Layout::plain),
        training_set_(read_fashion_mnist(options.data, "train")),
        test_set_(read_fashion_mnist(options.data, "t10k")),
        sampler_(group, static_cast<std::int64_t>(training_set_.size()), {.seed = options.seed}),
        model_(make_model(options, group)),
        ddp_(group, model_),
        optimizer_(trained_parameters(*model_),
                   torch::optim::SGDOptions(options.lr).momentum(kMomentum)),
        steps_per_epoch_(steps_of(sampler_.num_samples())),
        schedule_(schedule_of(options, group.world_size(), options.epochs * steps_per_epoch_)),
        log_(options, group) {
    state_ = {model_, &optimizer_, 0, kind_of(options)};
  }

  void run() {
    if (!resume() && !options_.init_from.empty()) {
      log_.line(init_from(options_.init_from, group_, *model_));
    }
    log_.begin({.epochs_done = state_.epochs_done,
                .steps_per_epoch = steps_per_epoch_,
                .samples_per_step = batch_size_ * group_.world_size()});
    EpochReport last;
    if (state_.epochs_done >= options_.epochs) {
      log_.line(options_.checkpoint + " has " + std::to_string(state_.epochs_done) +
                " epochs already: nothing to train");
      last.test_accuracy = evaluate();
    }
    for (std::int64_t e = state_.epochs_done; e < options_.epochs; ++e) last = epoch(e);
    log_.end(last, all_, group_.backend());
  }

 private:
  std::int64_t steps_of(std::int64_t samples) const {
    const std::int64_t all = (samples + batch_size_ - 1) / batch_size_;
    return options_.max_steps > 0 ? std::min(all, options_.max_steps) : all;
  }

  bool resume() {
    if (options_.checkpoint.empty() || !load_checkpoint(options_.checkpoint, group_, state_))
      return false;
    if (state_.epochs_done < options_.epochs) {
      log_.line("resuming after epoch " + std::to_string(state_.epochs_done) + " from " +
                options_.checkpoint + ", restart " + std::to_string(group_.restart_count()));
    }
    return true;
  }

  EpochReport epoch(std::int64_t e) {
    EpochReport report = train_epoch(e);
    ddp_.broadcast_buffers();  // Only rank 0's model is evaluated.
    if (options_.check_weights) check_weights(report.epoch);
    report.test_accuracy = evaluate();
    state_.epochs_done = report.epoch;
    all_.samples += report.samples;
    all_.steps += report.steps;
    all_.training += report.training;
    all_.sync = ddp_.total();
    // For ddprun's ledger: earlier work can no longer be lost.
    if (!options_.checkpoint.empty()) group_.set_phase("checkpoint");
    log_.epoch(report);
    if (!options_.checkpoint.empty() && group_.rank() == 0) {
      save_checkpoint(options_.checkpoint, state_);
    }
    if (!options_.checkpoint.empty()) group_.set_phase("");
    return report;
  }

  EpochReport train_epoch(std::int64_t e) {
    sampler_.set_epoch(e);
    const auto indices = sampler_.indices();
    const auto samples = static_cast<std::int64_t>(indices.size());
    const std::int64_t used = std::min(samples, steps_per_epoch_ * batch_size_);

    begin_training(*model_, options_.freeze);
    const ddprun::SyncReport before = ddp_.total();
    const auto start = Clock::now();
    double loss_sum = 0;
    for (std::int64_t s = 0; s < steps_per_epoch_; ++s) {
      const std::int64_t from = s * batch_size_;
      const std::int64_t count = std::min(batch_size_, used - from);
      const std::int64_t number = e * steps_per_epoch_ + s;
      const double rate = schedule_.at(number);
      double loss = step(batch_of(training_set_, indices.data() + from, count), rate);
      loss_sum += loss * static_cast<double>(count);
      if (options_.print_losses) loss = over_ranks(loss);
      log_.step({number, loss, loss_sum / static_cast<double>(from + count), rate});
    }
    EpochReport report{.epoch = e + 1,
                       .samples = used * group_.world_size(),
                       .steps = steps_per_epoch_,
                       .learning_rate = schedule_.at((e + 1) * steps_per_epoch_ - 1),
                       .training = Clock::now() - start,
                       .sync = difference(ddp_.total(), before)};
    group_.all_reduce(ddprun::buffer(&loss_sum, 1), ddprun::ReduceOp::sum, {.on_host = true});
    report.train_loss = loss_sum / static_cast<double>(report.samples);
    return report;
  }

  double step(const Batch& batch, double rate) {
    const auto scores = ddp_(input(batch));
    const auto loss = torch::nn::functional::cross_entropy(scores, batch.labels);
    ddp_.zero_grad();
    loss.backward();
    optimizer_.param_groups()[0].options().set_lr(rate);
    optimizer_.step();
    return loss.item<double>();
  }

  Batch batch_of(const LabelledImages& set, const std::int64_t* indices, std::int64_t count) const {
    const Batch batch = make_batch(set, indices, count, layout_);
    return {batch.images.to(device_), batch.labels.to(device_)};
  }

  torch::Tensor input(const Batch& batch) const {
    return options_.double_precision ? batch.images.to(torch::kDouble) : batch.images;
  }

  static ddprun::SyncReport difference(const ddprun::SyncReport& now,
                                       const ddprun::SyncReport& before) {
    return {.steps = now.steps - before.steps,
            .comm = now.comm - before.comm,
            .exposed = now.exposed - before.exposed,
            .bytes = now.bytes - before.bytes,
            .buckets = now.buckets - before.buckets};
  }

  // All ranks have equally large batches: the mean over ranks is the loss of the global batch.
  double over_ranks(double loss) {
    group_.all_reduce(ddprun::buffer(&loss, 1), ddprun::ReduceOp::avg, {.on_host = true});
    return loss;
  }

  // Every rank counts the right answers in a slice of the test set.
  double evaluate() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    const auto total = static_cast<std::int64_t>(test_set_.size());
    const std::int64_t first = total * group_.rank() / group_.world_size();
    const std::int64_t last = total * (group_.rank() + 1) / group_.world_size();
    std::vector<std::int64_t> indices;
    for (std::int64_t i = first; i < last; ++i) indices.push_back(i);
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < last - first; i += kEvaluationBatch) {
      const auto batch =
          batch_of(test_set_, indices.data() + i, std::min(kEvaluationBatch, last - first - i));
      right += model_->forward(input(batch)).argmax(1).eq(batch.labels).sum().item<std::int64_t>();
    }
    group_.all_reduce(ddprun::buffer(&right, 1), ddprun::ReduceOp::sum, {.on_host = true});
    return static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(total, 1));
  }

  void check_weights(std::int64_t epoch) {
    std::uint64_t mine = hash_of(model_);
    std::vector<std::uint64_t> all(static_cast<std::size_t>(group_.world_size()));
    group_.all_gather(ddprun::buffer(reinterpret_cast<std::uint8_t*>(&mine), sizeof mine),
                      ddprun::buffer(reinterpret_cast<std::uint8_t*>(all.data()), 8 * all.size()),
                      {.on_host = true});
    for (int r = 0; r < group_.world_size(); ++r) {
      if (all[static_cast<std::size_t>(r)] == all[0]) continue;
      throw std::runtime_error("after epoch " + std::to_string(epoch) + " the weights of rank " +
                               std::to_string(r) + " (" + group_.host_of(r) +
                               ") differ from those of rank 0");
    }
    char text[96];
    std::snprintf(text, sizeof text, "epoch %lld: weights equal on %d ranks, hash %016llx",
                  static_cast<long long>(epoch), group_.world_size(),
                  static_cast<unsigned long long>(mine));
    log_.line(text);
  }

  ddprun::ProcessGroup& group_;
  TrainOptions options_;
  std::int64_t batch_size_;
  const torch::Device device_;
  const Layout layout_;
  LabelledImages training_set_;
  LabelledImages test_set_;
  ddprun::DistributedSampler sampler_;
  ConvNet model_;
  ddprun::torch::DistributedDataParallel<ConvNetImpl> ddp_;
  torch::optim::SGD optimizer_;
  const std::int64_t steps_per_epoch_;
  const Schedule schedule_;
  TrainingLog log_;
  TrainState state_;
  EpochReport all_;
};

}  // namespace

void train(ddprun::ProcessGroup& group, const TrainOptions& options) {
  share_cores(group.identity());
  Trainer(group, options).run();
}

}  // namespace examples
