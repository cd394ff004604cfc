#include "worker_sdk/nccl_watch.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{10};
constexpr milliseconds kAbortLimit{10000};
// A peer that has left after its last operation has done its part, and ours ends in a moment. On a
// starved machine a moment is not a matter of the clock alone.
constexpr milliseconds kLeavePatience{250};
constexpr int kLeaveLooks = 15;

}  // namespace

NcclWatch::NcclWatch(std::shared_ptr<const Roster> roster, NcclCommunicator& comm,
                     GlooBackend* gloo)
    : roster_(std::move(roster)), comm_(comm), gloo_(gloo) {
  thread_ = std::thread([this] { run(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void NcclWatch::add(std::shared_ptr<NcclPending> operation) {
  const std::lock_guard lock(mutex_);
  const Clock::duration timeout = operation->call().deadline - operation->call().start;
  last_ = operation->call();
  entries_.push_back({std::move(operation), timeout});
  changed_.notify_all();
}

void NcclWatch::request_abort() noexcept {
  abort_requested_.store(true);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool NcclWatch::wait_idle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return entries_.empty(); });
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto busy = [&] { return !entries_.empty() || (abort_requested_.load() && !over_); };
    changed_.wait(lock, [&] { return stopping_ || busy(); });
    if (!busy()) return;
    if (over_) {  // Nothing more is started; what was about to be has failed with the rest.
      entries_.clear();
      changed_.notify_all();
      continue;
    }
    drop_finished();
    const auto trouble = look();
    if (trouble) {
      lock.unlock();
      fail(*trouble);
      lock.lock();
      continue;
    }
    if (!entries_.empty())
      changed_.wait_for(lock, kPeriod, [&] { return abort_requested_.load(); });
  }
}

void NcclWatch::drop_finished() {
  while (!entries_.empty() && entries_.front().operation->passed()) entries_.pop_front();
  if (entries_.empty()) changed_.notify_all();
  const NcclPending* front = entries_.empty() ? nullptr : entries_.front().operation.get();
  if (front != front_) front_since_ = Clock::now();
  front_ = front;
}

std::optional<NcclWatch::Trouble> NcclWatch::look() {
  if (abort_requested_.load()) return Trouble{.cause = Cause::kAborted, .text = {}};
  if (entries_.empty()) return std::nullopt;
  const Entry& front = entries_.front();
  const int status = comm_.status();
  if (status != kNcclSuccess && status != kNcclInProgress) {
    const int suspect = gloo_ ? gloo_->first_lost() : -1;
    return Trouble{.suspect = suspect, .text = comm_.explain(status)};
  }
  if (const auto peer = lost_peer(*front.operation)) return Trouble{.suspect = *peer, .text = {}};
  if (Clock::now() - front_since_ >= front.timeout) {
    return Trouble{.cause = Cause::kTimedOut, .text = {}};
  }
  return std::nullopt;
}

// Who is gone for so long that an operation with it could have ended. One that waits for the
// program's own kernels has not begun.
std::optional<int> NcclWatch::lost_peer(const NcclPending& front) {
  const int peer = gloo_ ? gloo_->first_lost() : -1;
  if (peer < 0 || !front.begun()) {
    looks_since_lost_ = 0;
    return std::nullopt;
  }
  if (looks_since_lost_++ == 0) lost_since_ = Clock::now();
  const bool over = Clock::now() - std::max(lost_since_, front_since_) >= kLeavePatience;
  if (!over || looks_since_lost_ < kLeaveLooks) return std::nullopt;
  return peer;
}

void NcclWatch::fail(const Trouble& trouble) {
  over_ = true;
  fate_->failing.store(true);
  Call call;
  {
    const std::lock_guard lock(mutex_);
    call = entries_.empty() ? last_ : entries_.front().operation->call();
  }
  std::thread freeing([this] { comm_.abort(kAbortLimit); });
  const Error error = diagnose_with_peers(call, trouble);
  freeing.join();
  const std::lock_guard lock(fate_->mutex);
  fate_->failure = error;
  fate_->changed.notify_all();
}

Error NcclWatch::diagnose_with_peers(const Call& call, const Trouble& trouble) {
  const Statement mine{
      .what = call.what, .number = call.number, .cause = trouble.cause, .suspect = trouble.suspect};
  const std::string nccl = trouble.text.empty() ? "" : " (NCCL: " + trouble.text + ")";
  try {
    if (gloo_) gloo_->fail(call, mine);
  } catch (const Error& error) {
    return Error(error.kind(), error.where(), error.text() + nccl);
  }
  switch (trouble.cause) {
    case Cause::kAborted:
      return failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
    case Cause::kTimedOut:
      return failure(*roster_, call, ErrorKind::timed_out, -1, "no end" + nccl);
    case Cause::kLost: break;
  }
  return failure(*roster_, call, ErrorKind::system, -1, "it failed" + nccl);
}

}  // namespace ddprun::worker_sdk
