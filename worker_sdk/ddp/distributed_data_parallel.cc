// The public face of DistributedDataParallel: takes the lock and hands on to ddp_passes.cc and
// ddp_setup.cc. Which parameters share a bucket is in buckets.cc, the check that ranks agree in
// agreement.cc.

#include "ddprun/distributed_data_parallel.h"

#include <utility>

#include "worker_sdk/ddp/ddp_impl.h"
#include "worker_sdk/group/group_inside.h"

namespace ddprun {
namespace {

// A step that fails for more than a misused call leaves its trace.
template <class Timer, class Body>
void traced(Timer& timer, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_argument) timer.failed();
    throw;
  }
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(ProcessGroup& group,
                                                 std::vector<Parameter> parameters,
                                                 const DdpOptions& options)
    : impl_(std::make_unique<Impl>(group, std::move(parameters), options)) {}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;

DistributedDataParallel::~DistributedDataParallel() {
  if (!impl_) return;
  if (worker_sdk::GroupInside::is_forked_child(impl_->group)) {
    static_cast<void>(impl_.release());  // As of a group: what is under way is the parent's.
    return;
  }
  impl_->complain_if_unfinished();
}

// Without the lock: those who write gradients may be waited for under it, such as a stream's work.
Buffer DistributedDataParallel::gradient(std::size_t i) { return impl_->buckets->gradient(i); }

std::shared_ptr<void> DistributedDataParallel::gradient_memory(std::size_t i) const {
  return impl_->buckets->memory(i);
}

void DistributedDataParallel::zero_gradients() {
  const std::lock_guard lock(impl_->mutex);
  impl_->buckets->zero(impl_->group);
}

void DistributedDataParallel::begin_forward() {
  const std::lock_guard lock(impl_->mutex);
  impl_->timer->begin_forward();
}

void DistributedDataParallel::end_forward() {
  const std::lock_guard lock(impl_->mutex);
  impl_->timer->begin_backward();
}

void DistributedDataParallel::begin_backward(std::span<const std::size_t> unused) {
  const std::lock_guard lock(impl_->mutex);
  traced(*impl_->timer, [&] { impl_->begin(unused); });
}

void DistributedDataParallel::mark_ready(std::size_t i) {
  const std::lock_guard lock(impl_->mutex);
  impl_->mark(i);
}

void DistributedDataParallel::finish_backward() {
  const std::lock_guard lock(impl_->mutex);
  traced(*impl_->timer, [&] { impl_->finish(); });
}

void DistributedDataParallel::cancel_backward() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->pass != Impl::Pass::none) traced(*impl_->timer, [&] { impl_->cancel(); });
}

bool DistributedDataParallel::used(std::size_t i) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->buckets->used(impl_->group, i);
}

bool DistributedDataParallel::rebuild() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->rebuild();
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  const std::lock_guard lock(ddp_.impl_->mutex);
  ++ddp_.impl_->no_sync_depth;
}

DistributedDataParallel::NoSync::~NoSync() {
  const std::lock_guard lock(ddp_.impl_->mutex);
  --ddp_.impl_->no_sync_depth;
}

bool DistributedDataParallel::synchronises() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->no_sync_depth == 0;
}

void DistributedDataParallel::join() {
  const std::lock_guard lock(impl_->mutex);
  traced(*impl_->timer, [&] { impl_->join(); });
}

void DistributedDataParallel::on_bucket_reduced(
    std::function<void(const GradientBucket&)> reduced) {
  const std::lock_guard lock(impl_->mutex);
  impl_->flow.set_reduced(std::move(reduced));
}

void DistributedDataParallel::reconfigure(ProcessGroup& next) {
  const std::lock_guard lock(impl_->mutex);
  static_cast<void>(impl_->flow.complete());  // Whatever became of it.
  impl_->connect(next);
}

void DistributedDataParallel::set_value(std::size_t i, Buffer value) {
  const std::lock_guard lock(impl_->mutex);
  Buffer& mine = impl_->parameters.at(i).value;
  if (value.count != mine.count || value.type != mine.type) {
    impl_->refuse("set_value() got an array of another size or type");
  }
  mine = value;
}

SyncReport DistributedDataParallel::last_step() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->timer->last();
}

SyncReport DistributedDataParallel::total() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->timer->total();
}

std::optional<SyncWindow> DistributedDataParallel::last_window() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->timer->window();
}

void DistributedDataParallel::on_window(std::function<void(const SyncWindow&)> heard) {
  const std::lock_guard lock(impl_->mutex);
  impl_->timer->set_heard(std::move(heard));
}

std::string DistributedDataParallel::trace() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->timer->trace();
}

std::vector<std::vector<std::size_t>> DistributedDataParallel::buckets() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->buckets->order();
}

}  // namespace ddprun
