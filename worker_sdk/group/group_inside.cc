#include "worker_sdk/group/group_inside.h"

#include "worker_sdk/elastic/combine.h"
#include "worker_sdk/group/process_group_impl.h"

namespace ddprun::worker_sdk {

constinit thread_local const char* GroupInside::refusal = nullptr;
constinit thread_local std::chrono::nanoseconds GroupInside::spent{0};
constinit thread_local int InGroupCall::depth_ = 0;

DeviceSide* GroupInside::device(const ProcessGroup& group) { return group.inside().device; }

std::optional<Stream> GroupInside::stream(const ProcessGroup& group) {
  return group.inside().stream;
}

std::shared_ptr<Progress> GroupInside::progress(const ProcessGroup& group) {
  return group.inside().progress;
}

void GroupInside::note_failure(const ProcessGroup& group, const Error& error) {
  group.impl_->progress->note_failure(error.kind(),
                                      group.impl_->roster->of_job(error.where().peer));
}

void GroupInside::settle(const ProcessGroup& group, const std::string& what) {
  device(group)->settle(what, group.inside().stream, group.inside().op_timeout);
}

bool GroupInside::is_forked_child(const ProcessGroup& group) {
  return group.inside().is_forked_child();
}

bool GroupInside::is_dead(const ProcessGroup& group) {
  return group.inside().dead.load(std::memory_order_acquire);
}

std::shared_ptr<Pending> GroupInside::pending(const Work& work) {
  return work.state_ ? work.state_->pending : nullptr;
}

std::chrono::nanoseconds GroupInside::cpu_time(const ProcessGroup& group) {
  return group.impl_->queue.cpu_time() + group.impl_->backend->cpu_time();
}

bool GroupInside::combines(const ProcessGroup& group) { return group.inside().backend->combines(); }

void GroupInside::combine_all(ProcessGroup& group, Buffer inout, const Combine& how) {
  Operation operation = group.inside().arguments.all_reduce(inout, ReduceOp::sum);
  operation.arrays.combine = &how;
  group.inside().run(operation, {});
}

bool can_combine(const ProcessGroup& group) { return GroupInside::combines(group); }
void combine_all(ProcessGroup& group, Buffer inout, const Combine& how) {
  GroupInside::combine_all(group, inout, how);
}

}  // namespace ddprun::worker_sdk
