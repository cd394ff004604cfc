#pragma once
// The output of rank 0 while it trains: lines and the bar, the metrics file, TensorBoard's event
// file. Other ranks write nothing. No libtorch. Used by trainer.cc.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ddprun/process_group.h"
#include "examples/train/event_file.h"
#include "examples/train/progress.h"
#include "examples/train/report.h"
#include "examples/train/train_options.h"

namespace examples {

struct StepReport {
  std::int64_t step = 0;     // From 0, over all epochs.
  double loss = 0;           // Of rank 0's batch; with --print-losses of all ranks'.
  double mean_loss = 0;      // Of rank 0's batches in this epoch.
  double learning_rate = 0;  // Used for the step.
};

struct TrainingPlan {
  std::int64_t epochs_done = 0;
  std::int64_t steps_per_epoch = 1;
  std::int64_t samples_per_step = 1;  // Of all ranks.
};

class TrainingLog {
 public:
  // Creates no file yet.
  TrainingLog(const TrainOptions& options, const ddprun::ProcessGroup& group);

  void line(const std::string& text) { progress_.line(text); }

  // Creates the files, or appends to them if epochs are done. Throws std::runtime_error naming a
  // file that cannot be written, as the functions below do.
  void begin(const TrainingPlan& plan);
  void step(const StepReport& report);
  void epoch(const EpochReport& report);
  void end(const EpochReport& last, const EpochReport& all, const std::string& backend);

 private:
  using Clock = std::chrono::steady_clock;

  void show(const StepReport& report);

  const TrainOptions options_;
  const bool prints_;
  const int world_size_;
  const int restart_count_;
  Progress progress_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  TrainingPlan plan_;
  std::int64_t first_step_ = 0;  // In this process.
  Clock::time_point begin_{};    // Of that step.
  Clock::time_point epoch_begin_{};
};

}  // namespace examples
