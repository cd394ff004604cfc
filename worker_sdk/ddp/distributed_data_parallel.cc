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

DistributedDataParallel& DistributedDataParallel::operator=(
    DistributedDataParallel&& other) noexcept {
  if (this != &other) {
    const DistributedDataParallel ended_first(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

DistributedDataParallel::~DistributedDataParallel() {
  if (!impl_) return;
  if (worker_sdk::GroupInside::is_forked_child(impl_->group)) {
    static_cast<void>(impl_.release());  // As of a group: what is under way is the parent's.
    return;
  }
  impl_->complain_if_unfinished();
}

DistributedDataParallel::Impl& DistributedDataParallel::inside() const {
  if (impl_) return *impl_;
  throw Error(ErrorKind::bad_argument, {.operation = "DistributedDataParallel"},
              "this DistributedDataParallel was moved from; use the one that it was moved into");
}

DistributedDataParallel::Locked DistributedDataParallel::locked() const { return Locked(inside()); }

// Without the lock: those who write gradients may be waited for under it, such as a stream's work.
Buffer DistributedDataParallel::gradient(std::size_t i) {
  inside().require_parameter(i);
  return impl_->buckets->gradient(i);
}

std::shared_ptr<void> DistributedDataParallel::gradient_memory(std::size_t i) const {
  inside().require_parameter(i);
  return impl_->buckets->memory(i);
}

void DistributedDataParallel::zero_gradients() {
  const Locked in = locked();
  in->buckets->zero(in->group);
}

void DistributedDataParallel::begin_forward() {
  const Locked in = locked();
  in->timer->begin_forward();
}

void DistributedDataParallel::end_forward() {
  const Locked in = locked();
  in->timer->begin_backward();
}

void DistributedDataParallel::begin_backward(std::span<const std::size_t> unused) {
  const Locked in = locked();
  traced(*in->timer, [&] { in->begin(unused); });
}

void DistributedDataParallel::mark_ready(std::size_t i) {
  const Locked in = locked();
  in->mark(i);
}

void DistributedDataParallel::finish_backward() {
  const Locked in = locked();
  traced(*in->timer, [&] { in->finish(); });
}

void DistributedDataParallel::cancel_backward() {
  const Locked in = locked();
  if (in->pass != Impl::Pass::kNone) traced(*in->timer, [&] { in->cancel(); });
}

bool DistributedDataParallel::used(std::size_t i) const {
  const Locked in = locked();
  in->require_parameter(i);
  return in->buckets->used(in->group, i);
}

bool DistributedDataParallel::rebuild() {
  const Locked in = locked();
  return in->rebuild();
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp.inside()) {
  const std::lock_guard lock(ddp_.mutex);
  ++ddp_.no_sync_depth;
}

DistributedDataParallel::NoSync::~NoSync() {
  const std::lock_guard lock(ddp_.mutex);
  --ddp_.no_sync_depth;
}

bool DistributedDataParallel::synchronises() const {
  const Locked in = locked();
  return in->no_sync_depth == 0;
}

void DistributedDataParallel::join() {
  const Locked in = locked();
  traced(*in->timer, [&] { in->join(); });
}

void DistributedDataParallel::on_bucket_reduced(
    std::function<void(const GradientBucket&)> reduced) {
  const Locked in = locked();
  in->flow.set_reduced(std::move(reduced));
}

void DistributedDataParallel::reconfigure(ProcessGroup& next) {
  const Locked in = locked();
  static_cast<void>(in->flow.complete());  // Whatever became of it.
  in->connect(next);
}

void DistributedDataParallel::set_value(std::size_t i, Buffer value) {
  const Locked in = locked();
  in->require_parameter(i);
  Buffer& mine = in->parameters[i].value;
  if (value.count != mine.count || value.type != mine.type) {
    in->refuse("set_value() got an array of another size or type");
  }
  mine = value;
}

SyncReport DistributedDataParallel::last_step() const {
  const Locked in = locked();
  return in->timer->last();
}

SyncReport DistributedDataParallel::total() const {
  const Locked in = locked();
  return in->timer->total();
}

std::optional<SyncWindow> DistributedDataParallel::last_window() const {
  const Locked in = locked();
  return in->timer->window();
}

void DistributedDataParallel::on_window(std::function<void(const SyncWindow&)> heard) {
  const Locked in = locked();
  in->timer->set_heard(std::move(heard));
}

std::string DistributedDataParallel::trace() const {
  const Locked in = locked();
  return in->timer->trace();
}

std::vector<std::vector<std::size_t>> DistributedDataParallel::buckets() const {
  const Locked in = locked();
  return in->buckets->order();
}

}  // namespace ddprun
