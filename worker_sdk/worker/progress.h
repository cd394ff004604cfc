#pragma once
// Reports to the agent what this worker is doing, through the page that DDPRUN_PROGRESS names.
// Without that variable, or if the page cannot be mapped, it does nothing. Used by ProcessGroup
// around each of its operations.

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "common/progress_page.h"
#include "common/sync_counts.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/worker/loss_listener.h"

namespace ddprun::worker_sdk {

// How long ago this process was started, in seconds that passed. Used by the sync timer's summary
// and by Progress.

// 0 if the system does not report it. Reads /proc at the first call only.
std::chrono::nanoseconds process_age();

class Progress {
 public:
  Progress() = default;  // Reports nothing.
  // `fence`: of the round, for a worker that gets a new seat after each change; null for others.
  explicit Progress(const std::string& path, std::shared_ptr<RoundFence> fence = nullptr);
  ~Progress();  // Marks the page as no longer used.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `of_whole_job`: false for a sub-group's call, as not all workers can compare its number.
  void enter(const Call& call, bool of_whole_job = true);
  void leave();  // Back to the program's phase.
  void set_phase(std::string_view name);

  // Why an operation has failed, and the rank of the job that is to blame, or -1. The first failure
  // counts, as later ones are only its consequences. Never blocks.
  void note_failure(ErrorKind kind, int peer);
  // This process ends its part in a group by itself, which the peers are about to notice. Revoked
  // when another operation begins. Never blocks.
  void note_left() noexcept;
  // The process has the state of so many steps of an elastic job.
  void note_kept(std::int64_t steps) noexcept;

  // The work of the process from now on, and whether its job can skip it; empty: nothing special.
  // The text is cut after the last whole character that fits.
  void note_work(std::string_view text, bool can_skip);

  const std::shared_ptr<RoundFence>& fence() const { return fence_; }

  // Empty if there is a fence: then the fence has the notice.
  std::optional<LossNotice> loss_notice() const;
  // See LossListener; null if there is no page.
  std::shared_ptr<void> listen(LossListener::Listener listener);

  // This process writes bundles that an operator requests.
  void take_requests() noexcept {
    if (mapped_) mapped_->takes_requests.store(1, std::memory_order_relaxed);
  }
  // How many bundles an operator has requested of this process.
  std::uint64_t requested_bundles() const noexcept {
    return mapped_ ? mapped_->bundles.load(std::memory_order_relaxed) : 0;
  }

  // Counts of a sync timer of this process since the last call, for the daemon's metrics.
  void count(const WorkerCounts& more);

  // For the ledger: the process begins to join its first group, or did so at that age; it has met
  // the others.
  void begin_joining(std::chrono::nanoseconds age = process_age());
  void met();
  // For the ledger: the first step of this process begins.
  void begin_steps();
  // For the ledger: `more` steps follow.
  void expect_steps(std::uint64_t more);
  // A step has ended that no timer takes apart.
  void count_step(Clock::duration took);
  // A step has ended at that time, whether it is counted here or by a timer.
  void stepped(Clock::time_point then);
  // Training stood still for a checkpoint.
  void stood_still(Clock::duration took);
  // All work before `then` is saved: a failure does not undo it.
  void saved(Clock::time_point then);

  bool reports() const { return page_ != nullptr; }

 private:
  void forget_end();
  void end_checkpoint_phase(std::string_view next);
  void go_to(std::size_t slot, std::uint64_t number);
  std::size_t slot_of(std::string_view phase);

  std::shared_ptr<RoundFence> fence_;
  ProgressPage* mapped_ = nullptr;
  ProgressPage* page_ = nullptr;  // mapped_, unless another group of this process writes there.
  std::unique_ptr<LossListener> listener_;  // Of mapped_.
  std::mutex mutex_;                        // The program's thread and the group's own.
  std::size_t phase_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t beats_ = 0;
  std::optional<Clock::time_point> checkpoint_since_;  // Set in the phase "checkpoint".
  Clock::time_point since_{};
};

// Around one operation.
class InCollective {
 public:
  InCollective(Progress& progress, const Call& call, bool of_whole_job = true)
      : progress_(progress) {
    progress_.enter(call, of_whole_job);
  }
  ~InCollective() { progress_.leave(); }
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  Progress& progress_;
};

}  // namespace ddprun::worker_sdk
