#include "examples/train/training_log.h"

#include <cstdio>

namespace examples {

TrainingLog::TrainingLog(const TrainOptions& options, const ddprun::ProcessGroup& group)
    : options_(options),
      prints_(group.rank() == 0),
      world_size_(group.world_size()),
      restart_count_(group.restart_count()),
      progress_(prints_) {}

void TrainingLog::begin(const TrainingPlan& plan) {
  plan_ = plan;
  first_step_ = plan.epochs_done * plan.steps_per_epoch;
  begin_ = epoch_begin_ = Clock::now();
  if (!prints_) return;
  if (!options_.metrics.empty())
    metrics_.emplace(options_.metrics, /*append=*/plan.epochs_done > 0);
  if (options_.tensorboard.empty()) return;
  events_.emplace(options_.tensorboard, restart_count_);
  if (plan.epochs_done > 0) events_->resume_at(first_step_);
}

void TrainingLog::step(const StepReport& report) {
  if (options_.print_losses) {
    char text[112];
    std::snprintf(text, sizeof text, "step %lld loss %.9g lr %.17g",
                  static_cast<long long>(report.step % plan_.steps_per_epoch), report.loss,
                  report.learning_rate);
    progress_.line(text);
  }
  if (events_) {
    events_->write(report.step,
                   {{"train/loss", report.loss}, {"train/learning_rate", report.learning_rate}});
  }
  show(report);
}

void TrainingLog::show(const StepReport& report) {
  if (!progress_.drawn() || options_.print_losses) return;
  const auto now = Clock::now();
  const std::int64_t epoch = report.step / plan_.steps_per_epoch;
  const std::int64_t done = report.step % plan_.steps_per_epoch + 1;
  const double samples = static_cast<double>(done * plan_.samples_per_step);
  const double seconds = std::chrono::duration<double>(now - epoch_begin_).count();
  char tail[96];
  std::snprintf(tail, sizeof tail, "loss %.3f  %.0f samples/s  ", report.mean_loss,
                samples / seconds);
  const std::int64_t end = options_.epochs * plan_.steps_per_epoch;
  progress_.update(
      {.label = "epoch " + std::to_string(epoch + 1) + "/" + std::to_string(options_.epochs),
       .done = static_cast<std::size_t>(done),
       .total = static_cast<std::size_t>(plan_.steps_per_epoch),
       .tail =
           tail + eta_text(now - begin_, report.step + 1 - first_step_, end - report.step - 1)});
}

void TrainingLog::epoch(const EpochReport& report) {
  epoch_begin_ = Clock::now();
  if (!prints_) return;
  if (!options_.print_losses) progress_.line(to_line(report, options_.epochs));
  if (metrics_) metrics_->write(to_json(report, world_size_, restart_count_));
  if (!events_) return;
  events_->write(report.epoch * plan_.steps_per_epoch - 1,
                 {{"epoch/train_loss", report.train_loss},
                  {"epoch/test_accuracy", report.test_accuracy},
                  {"speed/samples_per_s", report.samples_per_s()},
                  {"speed/step_ms", report.step_ms()},
                  {"speed/sync_exposed_ms", report.sync_exposed_ms()}});
}

void TrainingLog::end(const EpochReport& last, const EpochReport& all, const std::string& backend) {
  if (!options_.print_losses) progress_.line(summary(last, all, world_size_, backend));
}

}  // namespace examples
