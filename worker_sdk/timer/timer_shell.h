#pragma once
// The sync timer's connection to the world: it reads the clock, exchanges windows with the other
// ranks, prints, and writes files. Used by distributed_data_parallel.cc, under its lock.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/system/descriptors.h"
#include "ddprun/process_group.h"
#include "worker_sdk/timer/device_phases.h"
#include "worker_sdk/timer/sync_timer.h"
#include "worker_sdk/timer/sync_window.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

// How long a thread was ready to run while others had the CPUs: the kernel's count in
// /proc/thread-self/schedstat.
class RunDelay {
 public:
  // The delay of the calling thread since it began; std::nullopt if the kernel does not count it.
  std::optional<std::chrono::nanoseconds> of_this_thread();

 private:
  UniqueFd file_;
  std::thread::id thread_;  // The thread of the open file.
};

class TimerShell {
 public:
  using OnWindow = std::function<void(const SyncWindow&)>;
  // `foreign`: the steps are of a program that another library synchronises, and this reports them
  // to the agent. Of such buckets only the time spent waiting is known, and the exchange of windows
  // holds up no rank: it ends for good if ranks do not keep step.
  TimerShell(ProcessGroup& group, const SyncTimerOptions& options,
             std::shared_ptr<Progress> foreign = nullptr);
  ~TimerShell();  // Leaves the trace and the summary behind.
  TimerShell(const TimerShell&) = delete;
  TimerShell& operator=(const TimerShell&) = delete;

  // For a foreign program that computes on a GPU: from now on its phases are those of this stream.
  // `marks` must outlive this.
  void use_stream(StreamMarks& marks, Stream stream);

  void set_on_window(OnWindow on_window) { on_window_ = std::move(on_window); }

  void begin_data();
  void begin_optimizer();
  void begin_forward();
  void begin_backward();
  void end_local();
  void begin_wait();
  // Collective every `window` steps: starts an all_reduce, and reads its result a step later.
  void end_step(std::vector<BucketTimes> buckets, std::vector<BucketMarks> marks = {});
  void failed();  // Leaves the trace behind.

  SyncReport last() const { return timer_.last(); }
  SyncReport total() const { return timer_.total(); }
  const std::optional<SyncWindow>& window() const { return window_; }
  std::string trace() const;

 private:
  void enter(std::chrono::nanoseconds StepTimes::*phase);
  std::optional<Stream> stream() const;
  void record(StepTimes step);
  void record_done();                    // Records steps that the device has done.
  std::optional<Contention> counters();  // std::nullopt if the kernel does not count.
  void deliver();
  void deliver_finished();
  void receive_last();
  void begin_exchange();
  void print_window(const SyncWindow& window);
  void report();  // Reports to the agent.
  void complain(const std::string& path);

  const bool foreign_;
  bool silent_ = false;  // Windows are not exchanged any more.
  const Identity identity_;
  const std::string host_;
  const SyncTimerOptions options_;
  const StepClock::time_point start_;
  const std::chrono::nanoseconds startup_;
  StepClock::time_point end_;  // When the last step ended.
  ProcessGroup& group_;
  const std::shared_ptr<Progress> progress_;  // It may outlive the group.
  RunDelay run_delay_;                  // Not read on a GPU, where collectives take no CPU time.
  std::optional<Contention> at_begin_;  // The counters when the backward pass began, ...
  Contention contention_;               // ... and what it added to them.
  Phases phases_;
  std::optional<DevicePhases> device_;  // On a GPU: times are known some steps later.
  std::optional<Stream> stream_;        // The argument of use_stream().
  SyncTimer timer_;
  WorkerCounts reported_;  // What was reported of timer_.counted().
  OnWindow on_window_;
  std::optional<SyncWindow> window_;
  std::vector<float> sum_;
  std::optional<Work> exchange_;  // After sum_, which it writes to.
};

// The steps of a training loop that another library synchronises, such as PyTorch: the program
// reports its phase, and this informs the agent, sums up the times, and exchanges them with the
// other ranks over a group of its own. Used by c_store.cc.
class ForeignSteps {
 public:
  // kExposed: waiting for other ranks.
  enum class Phase : std::uint8_t { kOutside, kData, kForward, kBackward, kOptimizer, kExposed };
  static constexpr Phase kLastPhase = Phase::kExposed;

  // `page`: the value of DDPRUN_PROGRESS.
  explicit ForeignSteps(const std::string& page) : progress_(std::make_shared<Progress>(page)) {
    progress_->begin_joining();
  }
  ~ForeignSteps();  // Leaves the summary behind. Waits for no rank for longer than some seconds.
  ForeignSteps(const ForeignSteps&) = delete;
  ForeignSteps& operator=(const ForeignSteps&) = delete;

  // Collective. From the next enter() on, steps are timed.
  void join(const InitOptions& options);

  // From the next enter() on, a phase begins when this stream of a device reaches it; see
  // DevicePhases. `marks` must outlive this.
  void use_stream(StreamMarks& marks, Stream stream);

  // Call from one thread at a time.
  void enter(Phase phase);
  // `bytes`: of gradients that the ranks have exchanged.
  void end_step(std::size_t bytes);

  // Of a checkpoint; see Progress. From any thread.
  void stood_still(Clock::duration took) { progress_->stood_still(took); }
  void saved(Clock::time_point then) { progress_->saved(then); }

 private:
  void notify_agent(Phase phase);

  const std::shared_ptr<Progress> progress_;
  std::uint64_t steps_ = 0;
  std::optional<ProcessGroup> group_;
  StreamMarks* marks_ = nullptr;  // Once the program computes on a GPU.
  Stream stream_ = nullptr;
  std::optional<TimerShell> shell_;
};

}  // namespace ddprun::worker_sdk
