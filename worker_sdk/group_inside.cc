#include "worker_sdk/group_inside.h"

#include "worker_sdk/process_group_impl.h"

namespace ddprun::worker_sdk {

DeviceSide* GroupInside::device(const ProcessGroup& group) {
  return group.impl_->backend->device();
}

std::optional<Stream> GroupInside::stream(const ProcessGroup& group) { return group.impl_->stream; }

std::shared_ptr<Progress> GroupInside::progress(const ProcessGroup& group) {
  return group.impl_->progress;
}

void GroupInside::note_failure(const ProcessGroup& group, const Error& error) {
  group.impl_->progress->note_failure(error.kind(),
                                      group.impl_->roster->of_job(error.where().peer));
}

void GroupInside::settle(const ProcessGroup& group, const std::string& what) {
  device(group)->settle(what, group.impl_->stream, group.impl_->op_timeout);
}

std::shared_ptr<Pending> GroupInside::pending(const Work& work) {
  return work.state_ ? work.state_->pending : nullptr;
}

}  // namespace ddprun::worker_sdk
