#pragma once
// The steps of a training loop that another library synchronises, such as PyTorch: a program says
// where it is, and this tells the agent, sums up the times, and exchanges them with the other ranks
// over a group of its own. Used by c_timer.cc.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ddprun/process_group.h"
#include "worker_sdk/timer/timer_shell.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

class ForeignSteps {
 public:
  // kExposed: waiting for other ranks.
  enum class Phase : std::uint8_t { kOutside, kData, kForward, kBackward, kOptimizer, kExposed };
  static constexpr Phase kLastPhase = Phase::kExposed;

  // `page`: the value of DDPRUN_PROGRESS.
  explicit ForeignSteps(const std::string& page) : progress_(std::make_shared<Progress>(page)) {}
  ~ForeignSteps();  // Leaves the summary behind. Waits for no rank for longer than some seconds.
  ForeignSteps(const ForeignSteps&) = delete;
  ForeignSteps& operator=(const ForeignSteps&) = delete;

  // Collective. From the next enter() on, steps are timed.
  void join(const InitOptions& options);

  // From the next enter() on, a phase begins when this stream of a device comes to it; see
  // DevicePhases. `marks` must outlive this.
  void use_stream(StreamMarks& marks, Stream stream);

  // One thread at a time.
  void enter(Phase phase);
  // `bytes`: of gradients that the ranks have exchanged.
  void end_step(std::size_t bytes);

 private:
  void tell_agent(Phase phase);

  const std::shared_ptr<Progress> progress_;
  std::uint64_t steps_ = 0;
  std::optional<ProcessGroup> group_;
  StreamMarks* marks_ = nullptr;  // Once the program computes on a GPU.
  Stream stream_ = nullptr;
  std::optional<TimerShell> shell_;
};

}  // namespace ddprun::worker_sdk
