#pragma once
// `ddprun --report`: the table of where each rank's wall time went. Pure. What it reads are the
// summaries that workers with ddprun's SDK leave behind (worker_sdk/timer/run_summary.h). Used by
// report.cc.

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct RankTime {
  static constexpr std::array<const char*, 10> kParts = {
      "startup",  "outside", "forward", "backward",  "waiting",
      "transfer", "unknown", "data",    "optimizer", "rest"};
  static constexpr std::size_t kUnknown = 6, kData = 7, kOptimizer = 8;
  // A rank of the job that the others waited for.
  struct Late {
    int rank = 0;
    long long steps = 0;
    double seconds = 0;  // In all of these steps together.
    std::string phase;
  };
  int rank = 0;
  std::string host;
  int restart_count = 0;
  long long steps = 0;
  std::array<double, kParts.size()> seconds{};  // In the order of kParts.
  long long window_steps = 0;                   // Steps of which this rank knows who came last, ...
  std::vector<Late> late;                       // ... and who that was, worst first.
  double wall() const;
};

// Nothing: this is no summary.
std::optional<RankTime> read_summary(const std::string& json);

// One row a rank, in per cent of its wall time, in tenths that add up to 100.0; then what the
// columns mean, and who was late. Without ranks: a sentence that says why. No line is wider than
// `width`, unless a single number or word is; 0: any width.
std::string report_table(std::vector<RankTime> ranks, std::size_t width = 0);

// Numbers that add up to 1000, as close as possible to the shares; all 0 if there is nothing.
std::vector<int> per_mille(const std::vector<double>& parts);

}  // namespace ddprun::launcher
