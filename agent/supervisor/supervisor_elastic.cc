// The part of a Supervisor that keeps workers from round to round: which can be seated anew, how
// they leave a round, which are started in empty places, and what the daemon gets to know of all
// that.

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/supervisor/supervisor.h"
#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::agent {

using rendezvous::StopRound;

int Supervisor::count(bool (*is)(const Slot&)) const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), is));
}

bool Supervisor::elastic() const {
  return keeps_ && seat_ && std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
           return !slot.seated || slot.ready || slot.plain;
         });
}

// Otherwise the node has no worker, and starts all of them in the next round.
bool Supervisor::holds_living() const {
  return living_ > 0 || count([](const Slot& slot) { return slot.fallen; }) > 0;
}

void Supervisor::send_join() {
  DDPRUN_ASSERT(state_ == State::kJoining && !leaving_);
  if (!linked_) return;
  if (!holds_living()) {
    return actions_.push_back(SendJoin{.after_round = last_round_,
                                       .workers = options_.local_world_size,
                                       .serial = ++serial_,
                                       .kept_steps = kept_steps_,
                                       .min_ranks = min_ranks_});
  }
  const int all = options_.local_world_size;
  const int ready = std::min(all, count([](const Slot& slot) { return slot.alive && slot.ready; }));
  const int begin = count([](const Slot& s) { return s.alive && !s.ready && !s.plain && !s.late; });
  // All of these are among those that it offers: they take seats first.
  const int holders =
      count([](const Slot& slot) { return slot.alive && slot.ready && slot.holds(); });
  actions_.push_back(SendJoin{last_round_, ready, /*living=*/true, std::min(begin, all - ready),
                              ++serial_, holders, kept_steps_, min_ranks_});
  announced_ = {};  // A daemon that had forgotten us has not received this either.
  notify_slots();
}

void Supervisor::take_seat(const rendezvous::Seat& seat) {
  DDPRUN_ASSERT(state_ == State::kJoining && !seat_ && seat.round == last_round_);
  seat_ = seat;
  if (seat.lost_steps > 0) kept_steps_ = 0;
  newcomer_ = false;
  state_ = State::kRunning;
}

// Takes all workers that held a seat before, because no other has their state, and the first of the
// others that are ready: there may be more of these by now. If one has died since it was offered,
// the seat cannot be filled, and a new Join is sent.
void Supervisor::seat_living(const rendezvous::Seat& seat) {
  std::vector<int> local_ranks;
  for (const bool served : {true, false}) {
    for (std::size_t i = 0; i < slots_.size() && std::ssize(local_ranks) < seat.workers; ++i) {
      const Slot& slot = slots_[i];
      if (slot.alive && slot.ready && slot.served == served)
        local_ranks.push_back(static_cast<int>(i));
    }
  }
  std::sort(local_ranks.begin(), local_ranks.end());
  if (local_ranks.empty() || std::ssize(local_ranks) < seat.workers) return send_join();
  take_seat(seat);
  living_seated_ = static_cast<int>(local_ranks.size());
  for (const int local_rank : local_ranks) {
    Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
    slot.seated = true;
    slot.worked |= std::exchange(slot.resumed, false);
  }
  announced_ = {.round = seat.round, .kept = living_seated_, .fallen = announced_.fallen};
  actions_.push_back(SeatWorkers{*seat_, std::move(local_ranks)});
  spawn_spares();
  notify_slots();
}

// What the daemon does not know yet. That some, but not all, can be kept would not help it.
void Supervisor::notify_slots() {
  if (!linked_ || !keeps_) return;
  Announced now{.round = round(), .fallen = fallen_, .min_ranks = min_ranks_};
  if (state_ == State::kRunning || state_ == State::kLeaving) {
    const int seated = count([](const Slot& slot) { return slot.seated; });
    const int ready = count([](const Slot& slot) { return slot.seated && slot.ready; });
    now.kept = ready == seated ? ready : 0;
    const int more =
        count([](const Slot& slot) { return slot.alive && slot.ready && !slot.seated; });
    now.parked = std::min(more, std::max(options_.local_world_size - seated, 0));
    now.spares = more - now.parked;
  }
  const bool of_another = now.round != announced_.round;
  const bool news = now.fallen != announced_.fallen || now.min_ranks > announced_.min_ranks ||
                    (of_another ? now.kept + now.parked + now.spares > 0 : now != announced_);
  announced_ = now;
  if (!news) return;
  send(rendezvous::Slots{++serial_, now.round, now.kept, now.parked, fallen_, respawned_,
                         now.spares, min_ranks_});
}

void Supervisor::receive(const rendezvous::Alive& alive) {
  replaceable_ = alive.replaceable;
  if (!std::exchange(deserted_, alive.last) && alive.last && !leaving_) {
    actions_.push_back(
        LogLine{LogLine::Level::kWarning,
                "the node that runs the rendezvous daemon has left the run: workers "
                "continue, but no node can join or be replaced until a daemon answers "
                "there again"});
  }
  if (std::exchange(keeps_, alive.keeps) || !keeps_) return;
  announced_ = {};
  spawn_spares();
  notify_slots();
}

void Supervisor::on(const WorkerReady& ready) {
  Slot& slot = slots_.at(static_cast<std::size_t>(ready.local_rank));
  if (!slot.alive || slot.ready || slot.plain || slot.late) return;
  slot.ready = true;
  min_ranks_ = std::max(min_ranks_, ready.min_ranks);
  if (state_ == State::kJoining && !leaving_) return send_join();
  spawn_spares();
  notify_slots();
}

void Supervisor::on(const WorkerLeft& left) {
  Slot& slot = slots_.at(static_cast<std::size_t>(left.local_rank));
  if (!slot.alive || !slot.seated || slot.killed || left.round != round()) return;
  slot.left = true;
  if (slot.holds()) kept_steps_ = std::max(kept_steps_, left.kept_steps);
  try_leave();
  give_up_without_daemon();
}

// All have left the round, as when a rank of it is lost, and no daemon will seat them anew. If the
// daemon may come back, the fence ends such a wait.
void Supervisor::give_up_without_daemon() {
  const bool stays = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.alive && slot.seated && !slot.left;
  });
  if (state_ != State::kRunning || !deserted_ || linked_ || stays || give_up_at_) return;
  give_up_at_ = now_ + options_.leave_limit;
}

void Supervisor::on(const WorkerResumed& resumed) {
  Slot& slot = slots_.at(static_cast<std::size_t>(resumed.local_rank));
  if (!slot.alive || !slot.seated || resumed.round != round()) return;
  slot.resumed = true;
  kept_steps_ = std::max(kept_steps_, resumed.kept_steps);
}

// One without a seat is useless now.
void Supervisor::on(const WorkerPlain& plain) {
  Slot& slot = slots_.at(static_cast<std::size_t>(plain.local_rank));
  if (!slot.alive || !std::exchange(slot.ready, false)) return;
  slot.plain = true;
  if (!slot.seated && state_ != State::kStopping && state_ != State::kFinished) {
    actions_.push_back(KillWorkers{{plain.local_rank}});
  }
  if (state_ == State::kJoining && !leaving_) return send_join();
  notify_slots();
}

void Supervisor::plan_change(const StopRound& stop) {
  // A node that is fenced already waits for the daemon's message on the reason.
  if (state_ != State::kRunning || change_) return;
  change_ = stop;
  change_ends_ = now_ + options_.grace;
  const bool has_clause = stop.reason.find(": ") != std::string::npos;
  actions_.push_back(LogLine{LogLine::Level::kInfo, stop.reason + (has_clause ? "," : "") +
                                                        " at the next boundary between steps"});
  actions_.push_back(AnnounceChange{round(), stop.reason});
  try_leave();
}

void Supervisor::end_change() {
  DDPRUN_ASSERT(state_ == State::kRunning && change_);
  actions_.push_back(
      LogLine{LogLine::Level::kWarning,
              "the workers did not leave the round in time: ending their operations"});
  order_ = change_;
  fence_workers(-1, change_->reason);
}

void Supervisor::fence_workers(int lost_rank, std::string why) {
  DDPRUN_ASSERT(state_ == State::kRunning && elastic());
  state_ = State::kLeaving;
  clear_change();
  leave_ends_ = now_ + options_.leave_round_limit;
  if (!linked_) give_up_at_ = now_ + report_limit();
  actions_.push_back(FenceWorkers{round(), lost_rank, std::move(why)});
  try_leave();
}

// They stand still, for instance; the others go on without them.
void Supervisor::kill_those_that_stay() {
  DDPRUN_ASSERT(state_ == State::kLeaving);
  leave_ends_.reset();
  KillWorkers kill;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.alive || !slot.seated || slot.left) continue;
    slot.killed = true;
    kill.local_ranks.push_back(static_cast<int>(i));
  }
  if (kill.local_ranks.empty()) return;
  actions_.push_back(LogLine{LogLine::Level::kWarning,
                             number_of(std::ssize(kill.local_ranks), "worker") +
                                 " did not leave the round in time: killing what stays in it"});
  actions_.push_back(std::move(kill));
  abandon_at_ = now_ + options_.kill_limit;
}

// Whether all have left the round, and it is known how to go on.
void Supervisor::try_leave() {
  if (state_ == State::kRunning ? !change_ : state_ != State::kLeaving) return;
  const bool stays = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.alive && slot.seated && !slot.left;
  });
  if (stays) return;
  leave_ends_.reset();
  abandon_at_.reset();
  if (awaiting_output_ > 0) return;
  if (change_) order_ = change_;
  if (order_) leave_round();
}

void Supervisor::leave_round() {
  DDPRUN_ASSERT(order_ && order_->keep && !order_->final && seat_);
  clear_round();
  report_stopped();
  give_up_at_.reset();
  living_seated_ = 0;
  state_ = State::kJoining;
  KillWorkers useless;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].served |= slots_[i].seated;
    slots_[i].seated = slots_[i].left = false;
    if (slots_[i].alive && slots_[i].plain) useless.local_ranks.push_back(static_cast<int>(i));
  }
  if (!useless.local_ranks.empty()) actions_.push_back(std::move(useless));
  spawn_missing(/*fallen_too=*/false);
  start_over();
  join();
}

// No worker is in the round any more.
void Supervisor::clear_round() {
  fence_at_.reset();
  clear_change();
}

void Supervisor::clear_change() {
  change_.reset();
  change_ends_.reset();
  leave_ends_.reset();
}

void Supervisor::check_invariants() const {
  DDPRUN_ASSERT(living_ == count([](const Slot& slot) { return slot.alive; }));
  DDPRUN_ASSERT(living_seated_ ==
                count([](const Slot& slot) { return slot.alive && slot.seated; }));
  if (state_ == State::kRunning) DDPRUN_ASSERT(living_seated_ > 0);
  if (state_ == State::kStopping) DDPRUN_ASSERT(!all_accounted_for());
  if (state_ == State::kStopped) DDPRUN_ASSERT(all_accounted_for());
  if (state_ == State::kJoining || state_ == State::kFinished) DDPRUN_ASSERT(living_seated_ == 0);
  if (state_ == State::kLeaving || change_) DDPRUN_ASSERT(seat_ && !leaving_);
  const bool ends = leaving_ && state_ != State::kRunning;
  DDPRUN_ASSERT(seat_.has_value() != (state_ == State::kJoining) || ends || state_ == State::kDone);
  if (awaiting_output_ > 0) DDPRUN_ASSERT(state_ == State::kStopping || state_ == State::kLeaving);
  if (kill_at_) DDPRUN_ASSERT(state_ == State::kStopping || state_ == State::kFinished);
  if (kill_at_ || abandon_at_) DDPRUN_ASSERT(living_ > 0);
  if (leavers_at_)
    DDPRUN_ASSERT(state_ == State::kStopping && kill_at_ && *leavers_at_ <= *kill_at_);
  if (change_ends_) DDPRUN_ASSERT(state_ == State::kRunning && change_);
  if (leave_ends_) DDPRUN_ASSERT(state_ == State::kLeaving);
  if (ready_ends_) DDPRUN_ASSERT(state_ == State::kJoining && holds_living() && !leaving_);
  for (const Slot& slot : slots_) {
    if (slot.ready_ends) DDPRUN_ASSERT(slot.alive && !slot.seated && !slot.ready && !leaving_);
    if (slot.given_up) DDPRUN_ASSERT(slot.fallen);
    if (slot.late) DDPRUN_ASSERT(slot.alive && !slot.seated && !slot.ready);
  }
  if (failed_) DDPRUN_ASSERT(!deaths_.empty() && state_ != State::kJoining);
  if (state_ == State::kFinished) DDPRUN_ASSERT(deaths_.empty());
  if (unsent_) DDPRUN_ASSERT(leaving_ && !linked_);
  if (linked_ && give_up_at_) DDPRUN_ASSERT(leaving_ && state_ == State::kStopped);
  if (stays_) DDPRUN_ASSERT(dismissed_ && leaving_ && signal_ == 0);
  if (stay_ends_) DDPRUN_ASSERT(stays_);
  if (preempt_ends_) DDPRUN_ASSERT(preempted_ != 0 && !dismissed_);
  if (state_ == State::kDone) DDPRUN_ASSERT(!deadline());
  DDPRUN_ASSERT(actions_.empty());
  if (fence_at_) DDPRUN_ASSERT(may_be_in_round() && !linked_);
}

}  // namespace ddprun::agent
