#pragma once
// Sums up steps, and finds from all ranks' times which ranks waited for which. Pure. The shell
// around it is timer_shell.cc, which carries contribution() to the other ranks.

#include <deque>
#include <map>
#include <span>

#include "common/sync_counts.h"
#include "ddprun/sync_report.h"
#include "worker_sdk/timer/sync_window.h"

namespace ddprun::worker_sdk {

// How a backward pass was disturbed.
struct Contention {
  std::chrono::nanoseconds delayed{0};      // Its thread was ready to run, but had no CPU.
  std::chrono::nanoseconds collectives{0};  // CPU time of this rank's collectives in that time.
};

// Moves from backward to exposed the time that collectives delayed the last pass: at most the time
// that they were in progress, and at most their CPU time. The rest of the delay is due to the
// backward passes of other ranks and to other programs, and would exist without collectives.
void charge_contention(StepTimes& step, const Contention& during);

class SyncTimer {
 public:
  static constexpr std::size_t kRecent = 64;  // Steps kept for a trace.

  // `window` 0: never full.
  SyncTimer(int rank, int world_size, int window);

  void record(StepTimes step);

  SyncReport last() const;
  SyncReport total() const;
  WorkerCounts counted() const;
  const std::deque<StepTimes>& recent() const { return recent_; }

  // Steps since the last contribution() make a window: 8 at first, then as many as all before them,
  // up to a full window. So windows cover at least half of the steps of a short run.
  bool window_full() const;
  // This rank's times of the window in its place, zeros in the others': the sum over ranks is the
  // input of analyse(). Begins the next window.
  std::vector<float> contribution();
  void skip_window() { filling_.clear(); }  // Its late ranks stay unknown.
  SyncWindow analyse(std::span<const float> sum);

  // The ranks that the others waited for in all windows so far, worst first; three at most.
  std::vector<LateRank> late_ranks() const;
  int window_steps() const { return window_steps_; }  // In all windows so far.

 private:
  void sum_up(const StepTimes& step);
  void sum_up(const SyncWindow& window);

  const int rank_;
  const int world_size_;
  const int window_;
  SyncCounts last_;  // Counts of the last step.
  SyncCounts total_;
  std::deque<StepTimes> recent_;
  std::vector<StepTimes> filling_;
  std::vector<StepTimes> given_;    // What contribution() returned.
  std::size_t all_given_ = 0;       // Steps, by all of them.
  std::map<int, LateCounts> late_;  // By rank.
  int window_steps_ = 0;
};

}  // namespace ddprun::worker_sdk
