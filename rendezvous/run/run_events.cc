// The part of Run that hears: one handler an event. None of them moves the run from state to state;
// advance() does, afterwards. What they do at once is stop a round that cannot go on.

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/run.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
namespace {

constexpr int kRoundsMax = 1'000'000'000;  // No run gets there by itself.
constexpr int kBeatsToAnAnswer = 3;        // An agent gives up after twice kBeatsInTimeout.

}  // namespace

void Run::on(const NodeId& node, const Join& join) {
  const auto it = members_.find(node);
  if (it != members_.end() && join.serial != 0 && join.serial < it->second.serial) {
    return;  // It has said something newer since.
  }
  note_kept(join.kept_steps);
  if (state_ == State::kClosing && it != members_.end()) {
    // It has no workers, unless it said so long ago; it will hear the verdict with the others.
    const Member& member = it->second;
    if (member.seat && join.after_round >= member.seat->round) set_phase(it, Phase::kStopped);
    return;
  }
  if (state_ == State::kClosing || state_ == State::kEnded) return answer_stranger(node, -1);
  if (it != members_.end() && it->second.seat && join.after_round < it->second.seat->round) {
    // It said so before it heard of its seat, or has lost what we told it since.
    const Member& member = it->second;
    if (member.phase != Phase::kStopping) return tell(node, Assign{*member.seat});
    return tell(node, stop_of(member, "the round is over"));
  }
  if (dismissed_.contains(node)) {
    return it == members_.end() ? answer_stranger(node, -1) : rejoin_dismissed(it, join);
  }
  if (join.after_round > std::max(round_, kRoundsMax)) {
    return refuse(node, join.offer.host, "no run has had the round that it comes from");
  }
  if (is_overruled_by(join.offer)) overrule(join.offer);
  if (const auto why = objection(node, join)) return refuse(node, join.offer.host, *why);
  admit(node, join);
}

void Run::admit(const NodeId& node, const Join& join) {
  DDPRUN_ASSERT(gathering() || state_ == State::kRunning);
  DDPRUN_ASSERT(!dismissed_.contains(node));
  DDPRUN_ASSERT(join.after_round <= std::max(round_, kRoundsMax));
  if (!config_) {
    config_ = join.offer.config;
    raise_min_ranks(config_->min_ranks);
    config_from_ = join.offer.host;
    gather_ends_ = now_ + config_->join_timeout;
  }
  const auto [it, is_new] = members_.try_emplace(node);
  Member& member = it->second;
  if (is_new) {
    member.arrival = arrivals_++;
    ++in_phase_[static_cast<std::size_t>(member.phase)];
    member.beat = member.beat_told = beat();
    const auto lost = std::find_if(lost_grants_.begin(), lost_grants_.end(),
                                   [&](const LostGrant& one) { return one.node == node; });
    if (lost != lost_grants_.end()) {
      member.fallen = lost->fallen, member.granted = lost->granted;
      lost_grants_.erase(lost);
    }
    if (!silence_check_) silence_check_ = now_ + config_->heartbeat_timeout / 2;
  }
  // A daemon that forgot everything must not number a round as one its nodes remember.
  if (gathering()) round_ = std::max(round_, join.after_round + 1);
  const bool left_its_seat = member.phase == Phase::kSeated || member.phase == Phase::kFinished;
  take_offer(it, join.offer);
  member.missing = member.hopeless = false;
  member.last_seen = now_;
  member.seat.reset();
  member.living = join.living;
  member.holders = join.living ? join.holders : 0;
  member.after_round = join.after_round;
  raise_min_ranks(join.min_ranks);
  member.prepares = join.prepares && !join.living;
  member.invited = false;
  member.beginning = join.living ? std::clamp(join.beginning, 0, kParkedMax) : 0;
  member.serial = std::max(member.serial, join.serial);
  set_parked(member, 0);
  member.spares = 0;
  set_phase(it, join.offer.local_world_size > 0 ? Phase::kReady : Phase::kEmpty);
  ++roster_;
  if (!left_its_seat) return;
  // The first to leave where all leave; else it has no workers any more, whatever we believed, and
  // the others cannot go on without them.
  if (join.living && !change_.empty()) return regather(change_, -1, /*planned=*/true);
  regather(member.offer.host + " joined again");
}

// A heartbeat says which seat its node holds, so that a lost message is made good by the next one.
void Run::on(const NodeId& node, const Heartbeat& heartbeat) {
  const auto it = members_.find(node);
  if (it == members_.end() || state_ == State::kEnded)
    return answer_stranger(node, heartbeat.round);
  Member& member = it->second;
  member.last_seen = now_;
  member.beat = std::max(beat(), member.beat_told);
  member.beat_told = beat();
  // Where beats are rare because there are many, an answer to some of them says enough.
  if (!many() || ++member.unanswered >= kBeatsToAnAnswer) {
    member.unanswered = 0;
    tell(node, Alive{member.beat_told, state_ == State::kRunning && has_spares(), true});
  }
  const bool right = member.seat ? heartbeat.round == member.seat->round : heartbeat.round == -1;
  if (member.phase == Phase::kSeated && !right) return tell(node, Assign{*member.seat});
  if (member.phase == Phase::kSeated && !change_.empty()) {
    return tell(node, stop_of(member, change_));
  }
  if (member.phase == Phase::kStopping && right) {
    return tell(node, stop_of(member, "the round is over"));
  }
  if (!member.seat && !right) {
    StopRound stop{heartbeat.round, "the round is over", false};
    stop.keep = member.living;
    return tell(node, stop);
  }
  if (waits_for_seat(member) && member.roster_told != roster_) return tell_waiting(node, member);
}

void Run::on(const NodeId& node, const Finished& finished) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, finished.round);
  Member& member = it->second;
  if (!member.seat || member.seat->round != finished.round) return;
  if (member.phase == Phase::kSeated) {
    set_parked(member, 0);
    return set_phase(it, Phase::kFinished);
  }
  // It has not left the round where the others did. So its workers are started again.
  if (member.phase != Phase::kStopping || !planned_) return;
  StopRound stop = stop_of(member, "the round is over");
  stop.planned = false;
  tell(node, stop);
}

void Run::on(const NodeId& node, const Failed& failed) {
  const auto it = members_.find(node);
  if (it == members_.end()) return answer_stranger(node, failed.round);
  if (!it->second.seat || it->second.seat->round != failed.round) return;
  const bool lacked = workers_blamed_ && lacks_cause(deaths_, successes_);
  report_failed(failed);
  if (lacked) tell_of_cause(node);
  const bool changing = state_ == State::kGathering && planned_;
  if (state_ != State::kRunning && !changing)
    return;  // A victim, or a failure of workers that are being stopped.
  std::string reason = "rank " + std::to_string(failed.death.rank) + " on " + failed.death.host +
                       " " + how_it_ended(failed.death);
  const bool poison = is_poison(past_, failed.death);
  if (poison && failed.death.can_skip) {
    skip(failed.death);
    reason += "; skipping " + failed.death.work + ", which has ended two processes";
  }
  workers_blamed_ = true;
  if (restart_count_ < config_->max_restarts && (!poison || failed.death.can_skip)) {
    ++restart_count_;
    reason += successor_text(it->second);
    changing ? hurry(reason, failed.death.rank) : regather(reason, failed.death.rank);
  } else {
    close(Verdict::Kind::kWorkerFailed, 0, reason, failed.death.rank);
  }
}

void Run::on(const NodeId& node, const Stopped& stopped) {
  const auto it = members_.find(node);
  if (it == members_.end()) {
    // Where we answer a stranger with an order to stop, this is its answer to that.
    if (state_ == State::kEnded || dismissed_.contains(node)) answer_stranger(node, stopped.round);
    return;
  }
  Member& member = it->second;
  if (!member.seat || member.seat->round != stopped.round) return;
  const bool lacked = workers_blamed_ && lacks_cause(deaths_, successes_);
  for (const WorkerDeath& death : stopped.deaths) report(death);
  for (const WorkerDeath& success : stopped.successes) report_success(success);
  if (lacked) tell_of_cause(node);
  // Between rounds the node's Join says the same; only the end of the run waits for this word.
  if (state_ == State::kClosing) set_phase(it, Phase::kStopped);
}

void Run::on(const NodeId& node, const Leave& leave) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  const std::string& host = it->second.offer.host;
  if (leave.planned) return take_out(node, leave.reason, host + " leaves: " + leave.reason);
  const std::string how = "left: " + leave.reason, text = host + " " + how;
  const bool fixed = config_->nnodes_min == config_->nnodes_max;
  const bool active = gathering() || state_ == State::kRunning;
  if (fixed && it->second.phase != Phase::kFinished && leave.signal != 0) {
    // What fails when somebody interrupts the run is no cause, even if we hear of it first.
    const bool blamed = std::exchange(workers_blamed_, false);
    const int code = exit_code_of_signal(leave.signal);
    if (active) {
      close(Verdict::Kind::kInterrupted, code, text);
    } else if (blamed) {
      DDPRUN_ASSERT(state_ == State::kClosing);
      verdict_ = {.kind = Verdict::Kind::kInterrupted, .exit_code = code, .text = text};
    }
  }
  lose(members_.find(node), how);
}

void Run::on(const NodeId& node, const Lost& lost) {
  if (const auto it = members_.find(node); it != members_.end()) lose(it, lost.how);
}

void Run::on(const NodeId&, const Tick&) {
  if (count(Phase::kStopping) > 0 && now_ >= stop_ends_) lose_stuck();
}

void Run::on(const NodeId&, const Begin&) {
  DDPRUN_ASSERT(state_ == State::kEnded);
  forget();
}

void Run::forget() {
  const TimePoint now = now_;
  *this = Run();
  now_ = now;
}

void Run::on(const NodeId&, const Cancel& cancel) {
  workers_blamed_ = false;  // A run that closes already is not to open again.
  if (state_ == State::kClosing || state_ == State::kEnded) return;
  close(Verdict::Kind::kInterrupted, exit_code_of_signal(cancel.signal), cancel.reason);
}

void Run::on(const NodeId& node, const Drain& drain) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  // "drained by root@head: bad fan", or whatever another client sends.
  const bool named = drain.reason.starts_with("drained ");
  take_out(node, drain.reason,
           it->second.offer.host + (named ? " is " : " is drained: ") + drain.reason);
}

// Nodes that are not needed any more keep their workers, in reserve.
void Run::on(const NodeId&, const Resize& resize) {
  if (!config_ || state_ == State::kClosing || state_ == State::kEnded) return;
  if (resize.nodes < config_->nnodes_min || resize.nodes > config_->nnodes_max) return;
  size_ = resize.nodes;
  ++roster_;
  const bool ends = !change_.empty() || count(Phase::kFinished) > 0;
  if (state_ != State::kRunning || seated() <= size_ || ends) return;
  const std::string change = "resized to " + number_of(size_, "node") + ": " + resize.reason;
  all_kept() ? announce_change(change) : regather(change);
}

}  // namespace ddprun::rendezvous
