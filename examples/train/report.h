#pragma once
// The reports of train about its epochs: the line on the screen, the JSON line, the last lines. No
// libtorch.

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#include "ddprun/distributed_data_parallel.h"

namespace examples {

struct EpochReport {
  std::int64_t epoch = 0;  // From 1.
  double train_loss = 0;
  double test_accuracy = 0;  // 0 .. 1
  std::int64_t samples = 0;  // Of all ranks.
  std::int64_t steps = 0;
  double learning_rate = 0;              // In the last step.
  std::chrono::nanoseconds training{0};  // Wall time on this rank, without evaluation.
  ddprun::SyncReport sync;

  double samples_per_s() const;
  double step_ms() const;
  double sync_exposed_ms() const;  // Per step.
  double sync_comm_ms() const;     // Per step.
  double sync_share() const;       // Share of a step spent waiting, 0 .. 1.
};

std::string to_json(const EpochReport& report, int world_size, int restart_count);
std::string to_line(const EpochReport& report, std::int64_t epochs);

// The last lines: accuracy of the last epoch, speed and sync over all epochs of this process.
std::string summary(const EpochReport& last, const EpochReport& all, int world_size,
                    const std::string& backend);

// JSON lines in a file. Throws std::runtime_error naming the file if it cannot be written.
class MetricsFile {
 public:
  MetricsFile(std::string path, bool append);
  void write(const std::string& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace examples
