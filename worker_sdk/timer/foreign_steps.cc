#include "worker_sdk/timer/foreign_steps.h"

#include "common/assert.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::chrono::seconds kLeaveWithin{2};

const char* name_of(ForeignSteps::Phase phase) {
  using enum ForeignSteps::Phase;
  switch (phase) {
    case kData: return "data";
    case kForward: return "forward";
    case kBackward: return "backward";
    case kOptimizer: return "optimizer";
    case kOutside:
    case kExposed: return "";
  }
  return "";
}

}  // namespace

ForeignSteps::~ForeignSteps() {
  shell_.reset();
  if (group_) group_->shutdown(kLeaveWithin);
}

void ForeignSteps::join(const InitOptions& options) {
  DDPRUN_ASSERT(!group_);
  group_.emplace(GroupInside::join_unseen(options));
}

void ForeignSteps::use_stream(StreamMarks& marks, Stream stream) {
  marks_ = &marks;
  stream_ = stream;
  if (shell_) shell_->use_stream(marks, stream);
}

void ForeignSteps::enter(Phase phase) {
  using enum Phase;
  tell_agent(phase);
  if (group_ && !shell_) {
    if (phase == kOutside || phase == kExposed) return;  // No step has begun.
    shell_.emplace(*group_, SyncTimerOptions{}, progress_);
    if (marks_) shell_->use_stream(*marks_, stream_);
  }
  if (!shell_) return;
  switch (phase) {
    case kOutside: return shell_->end_local();
    case kData: return shell_->begin_data();
    case kForward: return shell_->begin_forward();
    case kBackward: return shell_->begin_backward();
    case kOptimizer: return shell_->begin_optimizer();
    case kExposed: return shell_->begin_wait();
  }
}

// Who waits for others is in the collective of the step: its number says which ranks are missing.
void ForeignSteps::tell_agent(Phase phase) {
  if (phase != Phase::kExposed) return progress_->set_phase(name_of(phase));
  progress_->enter({.what = {.kind = OpKind::kAllReduce}, .number = steps_ + 1});
}

void ForeignSteps::end_step(std::size_t bytes) {
  ++steps_;
  if (shell_) shell_->end_step({BucketTimes{.bytes = bytes}});
}

}  // namespace ddprun::worker_sdk
