// The part of Run that takes members in and out of rounds.

#include <algorithm>

#include "common/assert.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {

bool Run::may_become(Phase before, Phase after) {
  switch (after) {
    case Phase::kReady: return before != Phase::kStopped;
    case Phase::kSeated: return before == Phase::kReady;
    case Phase::kFinished: return before == Phase::kSeated;
    case Phase::kStopping: return before != Phase::kReady && before != Phase::kEmpty;
    case Phase::kStopped: return before == Phase::kStopping || before == Phase::kStopped;
    case Phase::kEmpty: return before != Phase::kStopped;
  }
  return false;
}

void Run::set_phase(Members::iterator it, Phase phase) {
  auto& [node, member] = *it;
  DDPRUN_ASSERT(may_become(member.phase, phase));
  --in_phase_[static_cast<std::size_t>(member.phase)];
  member.phase = phase;
  ++in_phase_[static_cast<std::size_t>(phase)];
  if (phase == Phase::kReady) {
    ready_.insert(node);
  } else {
    ready_.erase(node);
  }
}

// Under the node rank that it was told, if any.
void Run::take_offer(Members::iterator it, const NodeOffer& offer) {
  free_node_rank(it);
  it->second.offer = offer;
  if (offer.node_rank < 0) return;
  const bool is_free = node_ranks_.emplace(offer.node_rank, it->first).second;
  DDPRUN_ASSERT(is_free);
}

void Run::free_node_rank(Members::iterator it) {
  const auto told = node_ranks_.find(it->second.offer.node_rank);
  if (told != node_ranks_.end() && told->second == it->first) node_ranks_.erase(told);
}

void Run::erase(Members::iterator it) {
  --in_phase_[static_cast<std::size_t>(it->second.phase)];
  ready_.erase(it->first);
  free_node_rank(it);
  set_parked(it->second, 0);
  members_.erase(it);
  ++roster_;
}

// The node is not needed any more; its workers are gone.
void Run::dismiss(Members::iterator it) {
  DDPRUN_ASSERT(it->second.phase != Phase::kSeated && it->second.phase != Phase::kStopped);
  const bool waits = state_ != State::kClosing && waits_without(it->first);
  const NodeId node = it->first;
  if (it->second.offer.hosts_endpoint) daemon_host_ = node;
  if (const std::string& step = it->second.offer.scheduler_step; !step.empty()) {
    step_mates_[node] = step;
  }
  erase(it);
  Dismiss dismiss = dismissal(node);
  dismiss.waits = waits;
  tell(node, std::move(dismiss));
}

// What the node is told that has left, as often as it reports: whether others still need it.
Dismiss Run::dismissal(const NodeId& node) const {
  Dismiss dismiss{dismissed_.at(node)};
  dismiss.hosts = node == daemon_host_ && !members_.empty();
  const auto mate = step_mates_.find(node);
  dismiss.for_step = mate != step_mates_.end() &&
                     std::any_of(members_.begin(), members_.end(), [&](const auto& one) {
                       return one.second.offer.scheduler_step == mate->second;
                     });
  return dismiss;
}

// The member is gone, with its workers. One that had finished owes us nothing.
void Run::lose(Members::iterator it, const std::string& how) {
  DDPRUN_ASSERT(it != members_.end());
  const Phase phase = it->second.phase;
  const std::string what = it->second.offer.host + " " + how;
  const int first_rank = it->second.seat ? it->second.seat->base_rank : -1;
  if (const Member& member = it->second; member.fallen > 0) {
    lost_grants_.push_back({it->first, member.fallen, member.granted});
  }
  erase(it);
  if (phase != Phase::kFinished) note_loss(what);
  if (state_ == State::kRunning && phase == Phase::kSeated) regather(what, first_rank);
  if (state_ == State::kGathering && planned_ && phase == Phase::kStopping) hurry(what, first_rank);
  if (workers_blamed_ && phase == Phase::kStopping) excuse_workers(what);
  // A run that never began and lost its last node is as good as new.
  if (gathering() && members_.empty() && round_ == 0) forget();
}

void Run::note_loss(const std::string& what) {
  const auto known =
      std::find_if(lost_.begin(), lost_.end(), [&](const Loss& loss) { return loss.what == what; });
  if (known == lost_.end()) return lost_.push_back({what});
  ++known->times;
}

// The round has ended because a node is gone, not because a worker failed. See the top of run.h.
void Run::excuse_workers(const std::string& reason) {
  DDPRUN_ASSERT(workers_blamed_);
  workers_blamed_ = false;
  if (state_ == State::kGathering) {
    DDPRUN_ASSERT(restart_count_ > 0);
    --restart_count_;
    return;
  }
  DDPRUN_ASSERT(state_ == State::kClosing);
  DDPRUN_ASSERT(verdict_->kind == Verdict::Kind::kWorkerFailed);
  verdict_.reset();
  keep_ = planned_ = false;
  state_ = State::kGathering;
  ++round_;
  gather_ends_ = now_ + config_->join_timeout;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    auto& [node, member] = *it;
    if (member.phase != Phase::kStopping && member.phase != Phase::kStopped) continue;
    set_phase(it, Phase::kStopping);
    tell(node, StopRound{member.seat->round, reason, false});
  }
}

void Run::lose_stuck() {
  DDPRUN_ASSERT(state_ == State::kGathering || state_ == State::kClosing);
  DDPRUN_ASSERT(count(Phase::kStopping) > 0 && now_ >= stop_ends_);
  std::vector<NodeId> stuck, missing;
  for (const auto& [node, member] : members_) {
    if (member.phase == Phase::kStopping) (member.missing ? missing : stuck).push_back(node);
  }
  for (const NodeId& node : missing) lose(members_.find(node), "did not come back");
  workers_blamed_ = false;  // The others are not lost to us, we let them go.
  for (const NodeId& node : stuck) lose(members_.find(node), "could not stop its workers in time");
}

// Ends the present round and begins to gather the next one.
void Run::regather(const std::string& reason, int lost_rank, bool planned) {
  DDPRUN_ASSERT(state_ == State::kRunning);
  keep_ = keeps_workers();
  planned_ = keep_ && planned;
  stop_seated(reason + why_not_kept(), /*final=*/false, lost_rank);
  DDPRUN_ASSERT(seated() == 0);
  state_ = State::kGathering;
  ++round_;
  gather_ends_ = now_ + config_->join_timeout;
}

void Run::stop_seated(const std::string& reason, bool final, int lost_rank) {
  DDPRUN_ASSERT(config_);
  if (final) keep_ = planned_ = false;
  change_.clear();
  stop_ends_ = now_ + config_->stop_timeout;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    const Phase phase = it->second.phase;
    if (phase != Phase::kSeated && phase != Phase::kFinished) continue;
    set_phase(it, Phase::kStopping);
    set_parked(it->second, 0);
    StopRound stop = stop_of(it->second, reason);
    stop.final = final;
    stop.lost_rank = lost_rank;
    stop.waits = waits_for_others();
    if (workers_blamed_ && !final) {
      stop.lost_steps = lost_steps();
      stop.restart = restart_count_;
      stop.max_restarts = config_->max_restarts;
    }
    tell(it->first, stop);
  }
}

// The outcome is known. It is told once the workers are gone, so that the verdict can name the
// victims.
void Run::close(Verdict::Kind kind, int exit_code, const std::string& reason, int lost_rank) {
  DDPRUN_ASSERT(!verdict_ && (gathering() || state_ == State::kRunning));
  const bool success = kind == Verdict::Kind::kSuccess;
  if (success) DDPRUN_ASSERT(state_ == State::kRunning && count(Phase::kSeated) == 0);
  verdict_ = Verdict{.kind = kind, .exit_code = exit_code, .text = reason};
  // Whatever a worker was blamed for before, only the failure that ends the run may be excused.
  if (kind != Verdict::Kind::kWorkerFailed) workers_blamed_ = false;
  if (kind == Verdict::Kind::kWorkerFailed) DDPRUN_ASSERT(workers_blamed_ && !deaths_.empty());
  // A run that nobody has joined has nobody to stop.
  if (!success && config_) stop_seated(reason, /*final=*/true, lost_rank);
  change_.clear();
  state_ = State::kClosing;
  if (success) end();
}

void Run::end() {
  DDPRUN_ASSERT(state_ == State::kClosing && verdict_ && count(Phase::kStopping) == 0);
  if (verdict_->kind == Verdict::Kind::kWorkerFailed) {
    verdict_ = worker_verdict(deaths_, restart_count_, config_->max_restarts,
                              {.successes = successes_, .past = past_});
  }
  state_ = State::kEnded;
  workers_blamed_ = false;  // Nothing changes a verdict that has been told.
  for (const auto& [node, member] : members_) tell(node, EndRun{*verdict_});
}

// To a node that is no member: it was lost, or the run is over.
void Run::answer_stranger(const NodeId& node, int round) {
  // One that stayed for the others is told how the run has ended.
  const bool stayed = node == daemon_host_ || step_mates_.contains(node);
  if (dismissed_.contains(node) && (state_ != State::kEnded || !stayed)) {
    return tell(node, dismissal(node));
  }
  if (state_ == State::kEnded) return tell(node, EndRun{*verdict_});
  // In kClosing the verdict is on its way; a node that is no member can only wait for it.
  if (state_ == State::kClosing) return tell(node, StopRound{round, verdict_->text, true});
  tell(node, StopRound{round, "this node was counted as lost", false});
}

void Run::tell_waiting(const NodeId& node, Member& member) {
  DDPRUN_ASSERT(waits_for_seat(member));
  member.roster_told = roster_;
  Waiting waiting;
  if (state_ != State::kRunning && wait_ends() > now_) {
    waiting.left = std::chrono::duration_cast<Milliseconds>(wait_ends() - now_);
  }
  waiting.text = waiting_text(&member);
  tell(node, waiting);
}

// When those who wait are let in or sent home.
TimePoint Run::wait_ends() const {
  return state_ == State::kLastCall ? std::min(last_call_ends_, gather_ends_) : gather_ends_;
}

std::optional<TimePoint> Run::deadline() const {
  if (state_ == State::kEnded) return std::nullopt;
  std::optional<TimePoint> next = silence_check_;
  const auto consider = [&](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (gathering() && config_) consider(gather_ends_);  // Even without a member.
  if (state_ == State::kLastCall) consider(last_call_ends_);
  if (count(Phase::kStopping) > 0) consider(stop_ends_);
  if (state_ == State::kRunning && grow_at_) consider(*grow_at_);
  return next;
}

void Run::check_invariants() const {
  check_members();
  check_dismissed();
  const bool running = state_ == State::kRunning;
  DDPRUN_ASSERT(running == (seated() > 0) || state_ == State::kEnded);
  DDPRUN_ASSERT(running ? count(Phase::kStopping) == 0 : true);
  DDPRUN_ASSERT(count(Phase::kStopped) == 0 || state_ == State::kClosing ||
                state_ == State::kEnded);
  DDPRUN_ASSERT(verdict_.has_value() == (state_ == State::kClosing || state_ == State::kEnded));
  if (config_) DDPRUN_ASSERT(seated() <= config_->nnodes_max);
  if (config_) DDPRUN_ASSERT(restart_count_ <= config_->max_restarts);
  if (!change_.empty()) DDPRUN_ASSERT(running);
  if (planned_) DDPRUN_ASSERT(keep_);
  DDPRUN_ASSERT(deaths_.size() == dead_ranks_.size());
  if (workers_blamed_) {
    DDPRUN_ASSERT(state_ == State::kClosing || (gathering() && restart_count_ > 0));
    DDPRUN_ASSERT(!verdict_ || verdict_->kind == Verdict::Kind::kWorkerFailed);
  }
  DDPRUN_ASSERT(actions_.empty());
}

// Each member's seat is that of its phase, and what is counted or listed of them is true.
void Run::check_members() const {
  std::array<int, 6> in_phase{};
  int parked = 0;
  for (const auto& [node, member] : members_) {
    ++in_phase[static_cast<std::size_t>(member.phase)];
    const bool waits = member.phase == Phase::kReady || member.phase == Phase::kEmpty;
    DDPRUN_ASSERT(member.seat.has_value() != waits);
    parked += member.parked;
    if (member.parked > 0) DDPRUN_ASSERT(member.phase == Phase::kSeated);
    if (member.seat) DDPRUN_ASSERT(member.seat->round <= round_);
    const bool seated = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
    if (seated) DDPRUN_ASSERT(member.seat->round == round_);
  }
  DDPRUN_ASSERT(in_phase == in_phase_ && parked == parked_);
  DDPRUN_ASSERT(std::ssize(ready_) == count(Phase::kReady));
  for (const NodeId& node : ready_) DDPRUN_ASSERT(members_.at(node).phase == Phase::kReady);
  for (const auto& [rank, node] : node_ranks_)
    DDPRUN_ASSERT(members_.at(node).offer.node_rank == rank);
}

// Drained nodes are on their way out.
void Run::check_dismissed() const {
  for (const auto& [node, why] : dismissed_) {
    const auto it = members_.find(node);
    const bool stops = it != members_.end() && it->second.phase == Phase::kStopping;
    const bool ended = state_ == State::kEnded;  // Before it could leave.
    const bool leaves = it != members_.end() && it->second.seat && (ended || !change_.empty());
    DDPRUN_ASSERT(it == members_.end() || stops || leaves || it->second.phase == Phase::kStopped);
  }
}

}  // namespace ddprun::rendezvous
