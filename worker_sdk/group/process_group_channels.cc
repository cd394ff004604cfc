#include "worker_sdk/group/process_group_channels.h"

#include "worker_sdk/base/retry.h"

namespace ddprun {

using worker_sdk::Call;
using worker_sdk::Clock;
using worker_sdk::Operation;
using worker_sdk::OpKind;

Work ProcessGroup::Impl::Channels::post(const Operation& message, int tag,
                                        std::chrono::milliseconds timeout) {
  const bool sends = message.what.kind == OpKind::kSend;
  const int me = group_.roster->rank, peer = message.what.rank;
  const Name name{sends ? me : peer, sends ? peer : me, tag};
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Channel>& channel = channels_[name];
  if (!channel) {
    channel = std::make_unique<Channel>(group_, name);
    if (aborted_) channel->abort();
    if (lost_rank_ >= 0) channel->lose(lost_rank_, why_lost_);
  }
  return channel->post(message, timeout);
}

void ProcessGroup::Impl::Channels::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& [name, channel] : channels_) channel->abort();
}

void ProcessGroup::Impl::Channels::lose(int job_rank, const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  lost_rank_ = job_rank;
  why_lost_ = why;
  for (const auto& [name, channel] : channels_) channel->lose(job_rank, why);
}

// Does not hold the lock, which an abort needs. Channels live as long as this object.
bool ProcessGroup::Impl::Channels::wait_idle(Clock::time_point deadline) {
  std::vector<Channel*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, channel] : channels_) all.push_back(channel.get());
  }
  for (Channel* channel : all) {
    if (!channel->wait_idle(worker_sdk::left_until(deadline))) return false;
  }
  return true;
}

namespace {

worker_sdk::Plan plan_of_pair(const worker_sdk::Plan& among, int source, int destination) {
  worker_sdk::Plan plan = among;
  plan.shown_ranks = {source, destination};
  if (plan.backend == "nccl") plan.backend = "auto";  // For arrays of the host.
  return plan;
}

}  // namespace

ProcessGroup::Impl::Channels::Channel::Channel(Impl& group, const Name& name)
    : group_(group),
      name_(name),
      plan_(plan_of_pair(group.plan_among({name.source, name.destination},
                                          "/tag " + std::to_string(name.tag) + " from " +
                                              std::to_string(name.source) + " to " +
                                              std::to_string(name.destination)),
                         name.source, name.destination)),
      progress_(std::make_shared<worker_sdk::Progress>("", group.progress->fence())),
      fence_(group.progress->fence() ? group.progress->fence()
                                     : std::make_shared<worker_sdk::RoundFence>()) {}

Work ProcessGroup::Impl::Channels::Channel::post(const Operation& message,
                                                 std::chrono::milliseconds timeout) {
  group_.start(queue_, message.what);
  return Work(
      queue_.post([this, message, timeout] { carry_out(message, timeout); }, group_.completions));
}

void ProcessGroup::Impl::Channels::Channel::abort() noexcept {
  std::shared_ptr<Impl> pair;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    pair = pair_;
  }
  if (!group_.progress->fence())
    fence_->raise({.lost_rank = -1, .why = "this rank called abort()"});
  if (pair) pair->abort();
}

// The lost rank ends the round for the whole group: if the two ranks of a channel have not met yet,
// the other one may be on the lost node, too.
void ProcessGroup::Impl::Channels::Channel::lose(int job_rank, const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!pair_) {
    const int of_group = group_.roster->from_job(job_rank);
    if (of_group < 0 || of_group == group_.roster->rank) return;
    lost_.report(of_group, why);
    return fence_->raise({.lost_rank = of_group, .why = why});
  }
  const int lost = pair_->roster->from_job(job_rank);
  if (lost >= 0 && lost != pair_->roster->rank) pair_->backend->lose(lost, why);
}

// Runs on the queue's thread.
void ProcessGroup::Impl::Channels::Channel::carry_out(const Operation& message,
                                                      std::chrono::milliseconds timeout) {
  Call call{.what = message.what, .number = 1, .tag = name_.tag};
  call.start = Clock::now();
  call.deadline = worker_sdk::deadline_after(call.start, timeout);
  group_.refuse_fenced(call);
  if (group_.aborted.load()) group_.refuse_aborted(call);
  if (group_.dead.load(std::memory_order_acquire)) group_.refuse_dead(call);
  if (!pair_ && lost_) throw lost_.error(*group_.roster, call);
  if (!not_met_.empty()) {
    throw failure(*group_.roster, call, ErrorKind::aborted, -1,
                  "no message of this tag can follow, as the two ranks have not met: " + not_met_);
  }
  if (!pair_) join(call);
  call.what.rank = message.what.kind == OpKind::kSend ? 1 : 0;
  call.number = pair_->number(call.what).number;
  pair_->perform_message(call, worker_sdk::left_until(call.deadline), message.arrays);
}

void ProcessGroup::Impl::Channels::Channel::join(Call call) {
  InitOptions timeouts;
  timeouts.init_timeout = group_.init_timeout;
  timeouts.op_timeout = group_.op_timeout;
  try {
    auto joined = worker_sdk::join(plan_, worker_sdk::left_until(call.deadline),
                                   {.siblings = group_.siblings,
                                    .store = group_.store,
                                    .nccl = nullptr,
                                    .excluded = {},
                                    .fence = fence_});
    auto pair =
        std::make_shared<Impl>(plan_, std::move(joined), timeouts, progress_, group_.siblings);
    const std::lock_guard lock(mutex_);
    if (lost_) throw lost_.error(*group_.roster, call);
    if (aborted_) pair->abort();
    pair_ = std::move(pair);
  } catch (const Error& error) {
    group_.refuse_fenced(call);
    if (group_.aborted.load()) group_.refuse_aborted(call);
    if (lost_) throw lost_.error(*group_.roster, call);
    const int peer = call.what.rank;
    std::vector<int> missing;
    if (!error.where().missing.empty()) missing.push_back(peer);
    const Error failed = failure(
        *group_.roster, call, error.kind(), peer,
        group_.roster->name(peer) + " and this rank did not meet: " + error.text(), missing);
    not_met_ = failed.what();
    throw failed;
  }
}

namespace {

// Groups that are split off open the store anew.
worker_sdk::Plan with_store_of(const worker_sdk::Joined& joined, worker_sdk::Plan plan) {
  plan.rendezvous = joined.rendezvous;
  return plan;
}

}  // namespace

ProcessGroup::Impl::Impl(worker_sdk::Plan how, worker_sdk::Joined joined,
                         const InitOptions& options, std::shared_ptr<worker_sdk::Progress> reports,
                         std::shared_ptr<worker_sdk::NcclSiblings> others)
    : plan(with_store_of(joined, std::move(how))),
      progress(std::move(reports)),
      siblings(std::move(others)),
      life(plan.job_ranks.empty() ? worker_sdk::begin_life(plan) : nullptr),
      identity(joined.identity),
      roster(std::move(joined.roster)),
      arguments(roster),
      store_host(std::move(joined.store_host)),
      store(std::move(joined.store)),
      backend(std::move(joined.backend)),
      device(backend->device()),
      backend_name(backend->name()),
      init_timeout(options.init_timeout),
      op_timeout(options.op_timeout),
      channels(std::make_unique<Channels>(*this)),
      loss_notice(watch_agent()) {}

ProcessGroup::Impl::~Impl() {
  const auto deadline = worker_sdk::deadline_after(op_timeout);
  const bool messages_done = channels->wait_idle(deadline);
  if (!messages_done) progress->note_left(), channels->abort();
  const bool done = queue.wait_idle(worker_sdk::left_until(deadline));
  progress->note_left();  // This group begins no more operations, and no peer has noticed.
  if (!done) backend->abort();
  loss_notice.reset();  // It calls the channels, too.
  channels.reset();
}

// False: queued operations have not ended within `limit`, and are aborted.
bool ProcessGroup::Impl::shut_down(std::chrono::milliseconds limit) {
  const auto deadline = worker_sdk::deadline_after(limit);
  // Another thread may be in a blocking call, which may wait for a peer.
  const bool idle = worker_sdk::retry_until(deadline, [&] { return !busy.load(); }) &&
                    queue.wait_idle(worker_sdk::left_until(deadline)) &&
                    channels->wait_idle(deadline);
  if (idle) die("it was shut down");  // Peers may still be in the last one: no abort.
  if (!idle) abort();
  return idle;
}

void ProcessGroup::Impl::abort() noexcept {
  if (!aborted.exchange(true)) progress->note_failure(ErrorKind::aborted, -1);
  progress->note_left();
  backend->abort();
  channels->abort();
}

// The agent's notice of a lost rank, or the end of the round, ends operations in progress.
std::shared_ptr<void> ProcessGroup::Impl::watch_agent() {
  if (const auto& fence = progress->fence()) {
    return fence->listen([this] { backend->dissolve(); });
  }
  if (roster->size() == 1) return nullptr;
  return progress->listen([this](const worker_sdk::LossNotice& word) {
    const int lost = roster->from_job(word.rank);
    if (lost >= 0 && lost != roster->rank) backend->lose(lost, word.text);
    channels->lose(word.rank, word.text);
  });
}

}  // namespace ddprun
