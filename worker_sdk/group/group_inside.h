#pragma once
// Access to parts of a ProcessGroup that programs do not see, for DistributedDataParallel: the
// device behind it, and the page to the agent.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "ddprun/process_group.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/transport/backend.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::worker_sdk {

// A launcher reads what a crash leaves behind, unless DDPRUN_CRASH_REPORT is 0.
bool wants_crash_report();

struct GroupInside {
  static Variables process_variables();
  // Used by ProcessGroup::init with the plan that it has read from the environment. With a fence
  // the group is one of that round: once it is raised, every call throws `membership_changed`.
  // `joining_at`: how old the process was when it began to wait for the others; 0: it begins now.
  static ProcessGroup join(const Plan& plan, const InitOptions& options,
                           const std::shared_ptr<RoundFence>& fence = nullptr,
                           std::chrono::nanoseconds joining_at = {});
  // A group beside the program's own, of the same ranks, on the host. The agent is not informed of
  // its operations and errors.
  static ProcessGroup join_unseen(const InitOptions& options);

  static DeviceSide* device(const ProcessGroup& group);            // Null: arrays are the host's.
  static std::optional<Stream> stream(const ProcessGroup& group);  // As set by use_stream().
  static std::shared_ptr<Progress> progress(const ProcessGroup& group);
  static void note_failure(const ProcessGroup& group, const Error& error);  // For the agent.
  static void settle(const ProcessGroup& group, const std::string& what);   // DeviceSide's.
  static bool is_forked_child(const ProcessGroup& group);
  static bool is_dead(const ProcessGroup& group);             // An operation has failed.
  static std::shared_ptr<Pending> pending(const Work& work);  // Null: not in a device.
  static bool combines(const ProcessGroup& group);            // See elastic/combine.h.
  static void combine_all(ProcessGroup& group, Buffer inout, const class Combine& how);
  static std::chrono::nanoseconds cpu_time(const ProcessGroup& group);  // Of the group's threads.
  // If not null, calls of any group by this thread throw `bad_argument` with this text.
  static constinit thread_local const char* refusal;
  // The time that this thread has spent in calls of groups and waiting for their operations.
  static constinit thread_local std::chrono::nanoseconds spent;

 private:
  static ProcessGroup join(const Plan& plan, const InitOptions& options,
                           std::shared_ptr<Progress> progress);
};

// While one lives, this thread is in a call of a group, or waits for an operation: that is counted
// in GroupInside::spent.
class InGroupCall {
 public:
  InGroupCall() : since_(depth_++ == 0 ? Clock::now() : Clock::time_point()) {}
  ~InGroupCall() {
    if (--depth_ == 0) GroupInside::spent += Clock::now() - since_;
  }
  InGroupCall(const InGroupCall&) = delete;
  InGroupCall& operator=(const InGroupCall&) = delete;

 private:
  static constinit thread_local int depth_;
  const Clock::time_point since_;
};

}  // namespace ddprun::worker_sdk
