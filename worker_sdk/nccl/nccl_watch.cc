#include "worker_sdk/nccl/nccl_watch.h"

#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{10};
constexpr milliseconds kAbortLimit{10000};
constexpr milliseconds kRevokeLimit{2000};
// A peer that has left after its last operation has done its part, and ours ends in a moment. On a
// starved machine time alone is no measure, so a number of looks is required, too.
constexpr milliseconds kLeavePatience{250};
constexpr int kLeavePolls = 15;
// For the first sibling that failed to query its peers, and to be aborted.
constexpr milliseconds kSiblingPatience{15000};

}  // namespace

NcclWatch::NcclWatch(std::shared_ptr<const Roster> roster, NcclCommunicator& comm,
                     GlooBackend* gloo, std::shared_ptr<NcclSiblings> siblings)
    : roster_(std::move(roster)), comm_(comm), gloo_(gloo), siblings_(std::move(siblings)) {
  // Start the thread first, as that may fail: the siblings must not keep a watch that does not
  // exist.
  thread_ = start_thread("ddprun-nccl", roster_->here("watching NCCL"), [this] { run(); });
  if (siblings_->add(*this)) doom();
}

NcclWatch::~NcclWatch() {
  siblings_->remove(*this);
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

void NcclWatch::keep_polling(const Call& captured) {
  const std::lock_guard lock(mutex_);
  last_ = captured;
  graphs_ = true;
  changed_.notify_all();
}

void NcclWatch::request_abort() noexcept {
  abort_requested_.store(true);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void NcclWatch::overdue() noexcept {
  overdue_.store(true);
  fate_->failing.store(true);
}

// Sets `failing` at once: a caller that received the sibling's failure must not get through here.
void NcclWatch::doom() noexcept {
  doomed_.store(true);
  fate_->failing.store(true);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool NcclWatch::wait_idle(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return entries_.empty(); });
}

void NcclWatch::run() {
  comm_.runtime()->cuda.set_device(comm_.device());
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto wanted = [&] { return abort_requested_.load() || doomed_.load(); };
    const auto busy = [&] {
      return !entries_.empty() || (!over_ && (wanted() || (graphs_ && !stopping_)));
    };
    changed_.wait(lock, [&] { return stopping_ || busy(); });
    if (!busy()) return;
    if (over_) {  // Operations that were about to start have failed with the rest.
      entries_.clear();
      changed_.notify_all();
      continue;
    }
    drop_finished();
    auto trouble = poll();
    if (trouble) {
      lock.unlock();  // request_abort() and doom() must not wait, and NCCL's text may take a while.
      if (trouble->status != kNcclSuccess) {
        trouble->text = "NCCL: " + comm_.explain(trouble->status);
      }
      fail(*trouble);
      lock.lock();
      continue;
    }
    if (busy()) {
      changed_.wait_for(lock, kPeriod, [&] { return wanted() || (stopping_ && entries_.empty()); });
    }
  }
}

void NcclWatch::drop_finished() {
  while (!entries_.empty() && entries_.front().operation->passed()) entries_.pop_front();
  if (entries_.empty()) changed_.notify_all();
  const NcclPending* front = entries_.empty() ? nullptr : entries_.front().operation.get();
  if (front != front_) front_since_ = Clock::now();
  front_ = front;
}

std::optional<NcclWatch::Trouble> NcclWatch::poll() {
  if (abort_requested_.load()) return Trouble{.cause = Cause::kAborted, .text = {}};
  if (doomed_.load()) return Trouble{.text = {}, .source = Trouble::Source::kSibling};
  if (entries_.empty() && !graphs_) return std::nullopt;
  const int status = comm_.status();
  if (status != kNcclSuccess && status != kNcclInProgress) {
    const int suspect = gloo_ ? gloo_->first_lost() : -1;
    return Trouble{.suspect = suspect, .text = {}, .status = status};
  }
  if (const int fault = entries_.empty() ? kCudaSuccess : entries_.front().operation->fault()) {
    return Trouble{.text = std::string("CUDA: ") + comm_.runtime()->cuda.error_string(fault)};
  }
  if (auto trouble = loss_notice()) return trouble;
  if (entries_.empty()) {
    if (const auto peer = lost_peer(nullptr)) return Trouble{.suspect = *peer, .text = {}};
    return std::nullopt;
  }
  const Entry& front = entries_.front();
  if (const auto peer = lost_peer(front.operation.get()))
    return Trouble{.suspect = *peer, .text = {}};
  if (overdue_.load() || Clock::now() - front_since_ >= front.timeout) {
    return Trouble{.cause = Cause::kTimedOut, .text = {}};
  }
  return std::nullopt;
}

std::optional<NcclWatch::Trouble> NcclWatch::loss_notice() const {
  const auto word = siblings_->loss_notice();
  if (!word || word->rank == roster_->of_job(roster_->rank)) return std::nullopt;
  return Trouble{.suspect = roster_->from_job(word->rank),
                 .text = word->text,
                 .source = Trouble::Source::kAgent};
}

// The peer that has been gone for so long that an operation with it could have ended. An operation
// that waits for the program's own kernels has not begun. `front` is null for an operation of a
// graph: its state is unknown.
std::optional<int> NcclWatch::lost_peer(const NcclPending* front) {
  const int peer = gloo_ ? gloo_->first_lost() : -1;
  if (peer < 0 || (front && !front->begun())) {
    polls_since_lost_ = 0;
    return std::nullopt;
  }
  if (polls_since_lost_++ == 0) lost_since_ = Clock::now();
  const bool over = Clock::now() - std::max(lost_since_, front_since_) >= kLeavePatience;
  if (!over || polls_since_lost_ < kLeavePolls) return std::nullopt;
  return peer;
}

void NcclWatch::fail(const Trouble& trouble) {
  over_ = true;
  fate_->failing.store(true);
  Call call;
  bool in_graphs = false;
  {
    const std::lock_guard lock(mutex_);
    in_graphs = graphs_;
    call = entries_.empty() ? last_ : entries_.front().operation->call();
  }
  if (call.start == Clock::time_point{}) call.start = Clock::now();  // It was never called.
  const auto revoke = [this, in_graphs] { comm_.revoke(kRevokeLimit, kAbortLimit, in_graphs); };
  std::thread freeing;
  try {
    freeing = start_thread("ddprun-revoke", {}, revoke);
  } catch (const Error&) {  // This thread revokes, before it queries the peers.
  }
  siblings_->fail(*this, {.fate = fate_,
                          .roster = roster_,
                          .cause = trouble.cause,
                          .suspect = roster_->of_job(trouble.suspect)});
  if (!freeing.joinable()) revoke();
  const Error error = trouble.source == Trouble::Source::kSibling ? follow_sibling(call)
                      : trouble.source == Trouble::Source::kAgent
                          ? follow_agent(call, trouble)
                          : diagnose_with_peers(call, trouble);
  if (freeing.joinable()) freeing.join();
  const std::lock_guard lock(fate_->mutex);
  fate_->failure = error;
  fate_->changed.notify_all();
}

// The agent knows more than the peers, which may not have been notified yet.
Error NcclWatch::follow_agent(const Call& call, const Trouble& trouble) {
  if (gloo_) {
    gloo_->give_up({.what = call.what, .number = call.number, .suspect = trouble.suspect});
  }
  const std::string lost =
      trouble.suspect < 0 ? "a rank of the job is lost" : "lost " + roster_->name(trouble.suspect);
  return failure(*roster_, call, ErrorKind::peer_lost, trouble.suspect,
                 lost + " (the agent reports: " + trouble.text + ")");
}

// Peers that are not in the sibling regard this rank as the one that aborts, which is true.
Error NcclWatch::follow_sibling(const Call& call) {
  const auto first = *siblings_->first();
  const int suspect = roster_->from_job(first.suspect);
  if (gloo_) {
    gloo_->give_up({.what = call.what,
                    .number = call.number,
                    .cause = suspect < 0 ? Cause::kAborted : first.cause,
                    .suspect = suspect});
  }
  std::unique_lock lock(first.fate->mutex);
  first.fate->changed.wait_for(lock, kSiblingPatience,
                               [&] { return first.fate->failure.has_value(); });
  if (!first.fate->failure) {
    return failure(*roster_, call, ErrorKind::aborted, -1, "another group of this process failed");
  }
  const Error& cause = *first.fate->failure;
  const int peer = roster_->from_job(first.roster->of_job(cause.where().peer));
  return failure(*roster_, call, cause.kind(), peer,
                 std::string("another group of this process failed: ") + cause.what());
}

Error NcclWatch::diagnose_with_peers(const Call& call, const Trouble& trouble) {
  const Statement mine{
      .what = call.what, .number = call.number, .cause = trouble.cause, .suspect = trouble.suspect};
  const std::string why = trouble.text.empty() ? "" : " (" + trouble.text + ")";
  try {
    if (gloo_) gloo_->fail(call, mine);
  } catch (const Error& error) {
    return Error(error.kind(), error.where(), error.text() + why);
  }
  switch (trouble.cause) {
    case Cause::kAborted:
      return failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
    case Cause::kTimedOut: return failure(*roster_, call, ErrorKind::timed_out, -1, "no end" + why);
    case Cause::kLost: break;
  }
  return failure(*roster_, call, ErrorKind::system, -1, "it failed" + why);
}

}  // namespace ddprun::worker_sdk
