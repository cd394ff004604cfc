// How a Supervisor ends its workers (by SIGTERM, by SIGKILL, or left behind), and then itself.

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/supervisor/supervisor.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {

using rendezvous::Verdict;

namespace {

constexpr int kExitWorkersStuck = exit_code_of_signal(SIGKILL);  // As if it had ended them.
constexpr std::chrono::seconds kReturnTime{2};

// `any_left`: of the workers that stay if the order keeps them.
std::string how_it_goes_on(const rendezvous::StopRound& stop, bool any_left = true) {
  const char* all = stop.restart == 0 ? "starting again" : "starting all again";
  std::string what = stop.keep && any_left ? "the other workers continue" : all;
  if (stop.keep && any_left && stop.waits)
    what = "the other workers wait for more, with their state";
  if (stop.lost_steps > 0) {
    what = "no worker is left that has the state: the job begins again, " +
           std::to_string(stop.lost_steps) + (stop.lost_steps == 1 ? " step" : " steps") +
           (stop.lost_steps == 1 ? " is" : " are") + " lost unless a checkpoint has " +
           (stop.lost_steps == 1 ? "it" : "them");
  }
  if (stop.restart == 0) return what;
  return what + " (restart " + std::to_string(stop.restart) + " of " +
         std::to_string(stop.max_restarts) + ")";
}

}  // namespace

void Supervisor::receive(const rendezvous::StopRound& stop) {
  // A daemon that has forgotten that this node left has forgotten those that needed it, too.
  if (stay_no_longer()) return living_ == 0 ? depart() : void();
  if (stop.round < round()) return;  // About a round that is long over.
  switch (state_) {
    case State::kJoining:
      if (leaving_) return;
      if (stop.final) return send(rendezvous::Stopped{stop.round, {}});
      if (stop.round != -1 && stop.round <= last_round_) return;  // Our Join has answered it.
      last_round_ = std::max(last_round_, stop.round);
      return send_join();
    case State::kRunning:
    case State::kLeaving:
      if (stop.keep && elastic()) return stop.planned ? plan_change(stop) : keep_on(stop);
      break;
    case State::kFinished:
      // If all have finished, the run is over. It wants to know.
      if (stop.planned) return send(rendezvous::Finished{round()});
      break;
    case State::kStopping:
    case State::kStopped:
      if (!seat_) return;
      if (!order_ && stop.restart > 0) {
        actions_.push_back(LogLine{LogLine::Level::kInfo, stop.reason + "; " + how_it_goes_on(stop),
                                   LogLine::About::kRestart});
      }
      order_ = stop;  // A run that was about to end may go on after all.
      if (!stop.awaits_cause) stop_leavers(SIGTERM);
      if (state_ == State::kStopped) after_stop();
      return;
    case State::kDone: return;
  }
  order_ = stop;
  const std::string then = preempted_ != 0 ? "leaving the run" : how_it_goes_on(stop);
  actions_.push_back(LogLine{LogLine::Level::kInfo,
                             stop.reason + "; stopping" + (stop.final ? "" : ", then " + then),
                             LogLine::About::kRestart});
  begin_stop(SIGTERM);
}

// The round is over, and the workers stay.
void Supervisor::keep_on(const rendezvous::StopRound& stop) {
  DDPRUN_ASSERT(state_ == State::kRunning || state_ == State::kLeaving);
  const bool known = std::exchange(order_, stop).has_value();
  if (known) return;
  const bool any_left = living_seated_ > 0 || seat_->group_world_size > 1;
  actions_.push_back(LogLine{LogLine::Level::kInfo,
                             stop.reason + "; " + how_it_goes_on(stop, any_left),
                             LogLine::About::kRestart});
  // If workers do not stay, a restart would also start again all that fell before.
  if (stop.restart > 0) restart_count_ = stop.restart;
  spawn_missing(/*fallen_too=*/stop.restart > 0);
  if (state_ == State::kRunning) return fence_workers(stop.lost_rank, stop.reason);
  try_leave();
}

void Supervisor::arm_fence() {
  DDPRUN_ASSERT(!linked_);
  const bool may_go_on = !deserted_ && (options_.fence_always || replaceable_);
  const bool is_over = order_ && order_->final;
  if (options_.fence == Duration::zero() || !may_go_on || !may_be_in_round() || is_over) return;
  fence_at_ = now_ + options_.fence;
}

// SIGKILL without a warning: a checkpoint saved now would race with the nodes that continue.
void Supervisor::cut_off() {
  DDPRUN_ASSERT(may_be_in_round() && !linked_);
  if (now_ - *fence_at_ > kStoodStill) {
    fence_at_ = now_ + kReturnTime;  // We did not search for the daemon in that time.
    return;
  }
  const std::string text = options_.host + " is cut off from the rendezvous daemon (" + why_down_ +
                           "), and the run may continue without it";
  fence_at_.reset();
  if (state_ == State::kLeaving) return leave_ends_ ? kill_those_that_stay() : void();
  const bool joins = state_ == State::kRunning;
  if (living_ > 0) {
    actions_.push_back(LogLine{LogLine::Level::kError, text + ": killing its workers" +
                                                           (joins ? ", then joining again" : "")});
  }
  fenced_ |= joins;
  state_ = State::kStopping;
  clear_round();
  kill_workers();
}

// Nodes that compute do not wait for them, so that no other node notices.
void Supervisor::give_up_beginners() {
  DDPRUN_ASSERT(state_ == State::kJoining && !leaving_ && holds_living());
  if (now_ - *ready_ends_ > kStoodStill) {  // So did the workers.
    for (Slot& slot : slots_) slot.ready_ends.reset();
    return ready_ends_.reset();
  }
  std::vector<int> waited_for;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].alive || slots_[i].fallen) waited_for.push_back(static_cast<int>(i));
  }
  const auto limit = std::chrono::duration_cast<Milliseconds>(options_.ready_limit);
  const std::string subject = std::string("none of its workers (local rank") +
                              (waited_for.size() == 1 ? " " : "s ") + ranges_text(waited_for) + ")";
  leave_unready(subject + " has opened its link to ddprun within " + seconds_text(limit) +
                (living_ > 0 ? "" : "; all have ended, and no restart is left"));
}

void Supervisor::leave_unready(const std::string& why) {
  DDPRUN_ASSERT(state_ == State::kJoining && !leaving_);
  actions_.push_back(LogLine{
      LogLine::Level::kError,
      options_.host + " leaves the run: " + why +
          ". The workers of this run keep their processes, and it lets in only workers that can do "
          "the same: start the program that the other nodes run, which creates a Job "
          "(docs/elastic.md). If it takes longer to begin, set join_timeout in --rdzv-conf"});
  const rendezvous::Leave leave{0, why};
  if (linked_)
    send(leave);
  else
    unsent_ = leave;
  leaving_ = Exit{kExitNeverReady, std::nullopt};
  order_.reset();  // That of the round before is not a reason for this.
  living_ == 0 ? depart() : begin_stop(SIGTERM);
}

void Supervisor::on(const LauncherDied&) {
  actions_.push_back(SignalWorkers{SIGKILL});
  actions_.push_back(CleanUp{});
  exit(exit_code_of_signal(SIGKILL), std::nullopt);
}

void Supervisor::begin_stop(int signal) {
  DDPRUN_ASSERT(state_ != State::kStopping && state_ != State::kStopped);
  DDPRUN_ASSERT(state_ != State::kDone && (!kill_at_ || state_ == State::kFinished));
  state_ = State::kStopping;
  clear_change();
  abandon_at_.reset();
  if (all_accounted_for()) return workers_gone();
  if (living_ == 0) return;
  give_up_at_.reset();
  kill_at_ = kill_at_.value_or(now_ + options_.grace);
  SignalWorkers order{signal};
  // The failure may be that of a victim, and a worker of this node the peer that it has lost: that
  // worker's own end explains more than an end by a signal.
  const bool awaits =
      failed_ ? rendezvous::lacks_cause(deaths_, successes_) : order_ && order_->awaits_cause;
  if (awaits && !leaving_) {
    order.targets = SignalWorkers::Targets::kAllButLeavers;
    leavers_at_ = std::min(now_ + options_.grace / 2, *kill_at_);
  }
  if (failed_) {
    order.lost_rank = failure()->rank;
    order.why = "rank " + std::to_string(failure()->rank) + " " + how_it_ended(*failure());
  } else if (order_) {
    order.lost_rank = order_->lost_rank;
    order.why = order_->reason;
  }
  actions_.push_back(std::move(order));
}

// They had time to end by themselves, or it is known by now why others failed.
void Supervisor::stop_leavers(int signal) {
  if (!std::exchange(leavers_at_, std::nullopt)) return;
  DDPRUN_ASSERT(state_ == State::kStopping && living_ > 0);
  actions_.push_back(
      SignalWorkers{.signal = signal, .targets = SignalWorkers::Targets::kThoseLeavers});
}

void Supervisor::kill_workers() {
  kill_at_.reset();
  leavers_at_.reset();
  if (living_ == 0) return;
  DDPRUN_ASSERT(state_ == State::kStopping || state_ == State::kFinished);
  actions_.push_back(SignalWorkers{SIGKILL});
  if (!abandon_at_) abandon_at_ = now_ + options_.kill_limit;
}

// They hold memory, ports and devices that a new round would need: this node cannot go on. If the
// run is over anyway, its verdict is worth a moment more.
void Supervisor::abandon_workers() {
  DDPRUN_ASSERT(living_ > 0);
  if (state_ == State::kLeaving) return leave_for(kExitWorkersStuck, std::nullopt);
  const std::string stuck = "SIGKILL does not end " + number_of(living_, "worker");
  const std::string outcome = "; abandoning the stuck process";
  actions_.push_back(LogLine{LogLine::Level::kError, stuck + " of " + options_.host + outcome});
  actions_.push_back(AbandonWorkers{});
  const int status = leaving_ && leaving_->status != 0 ? leaving_->status
                     : failed_                         ? exit_status(*failure())
                                                       : kExitWorkersStuck;
  if (order_ && order_->final && linked_ && !leaving_) {
    abandon_at_.reset();
    leavers_at_.reset();
    living_ = living_seated_ = awaiting_output_ = 0;
    std::fill(slots_.begin(), slots_.end(), Slot{});
    state_ = State::kStopped;
    leaving_ = Exit{status, std::nullopt};
    give_up_at_ = now_ + options_.leave_limit;
    return after_stop();
  }
  send(rendezvous::Leave{0, stuck + outcome});
  exit(status, leaving_ ? leaving_->verdict : std::nullopt);
}

void Supervisor::workers_gone() {
  DDPRUN_ASSERT(state_ == State::kStopping && all_accounted_for());
  DDPRUN_ASSERT(!kill_at_ && !abandon_at_);
  state_ = State::kStopped;
  clear_round();
  std::fill(slots_.begin(), slots_.end(), Slot{});
  actions_.push_back(CleanUp{});
  if (leaving_) return depart();
  if (fenced_ && !order_) return join();
  if (!linked_) give_up_at_ = now_ + report_limit();
  if (order_) after_stop();
}

// The daemon may name a rank that left early; of many that ended well together, some are enough.
void Supervisor::report_stopped() {
  DDPRUN_ASSERT(seat_ && awaiting_output_ == 0);
  constexpr std::size_t kSuccessesMax = 64;
  rendezvous::Stopped stopped{round(), deaths_, successes_};
  if (stopped.successes.size() > kSuccessesMax) stopped.successes.resize(kSuccessesMax);
  send(std::move(stopped));
}

// Every worker is gone and the daemon has sent how to go on.
void Supervisor::after_stop() {
  DDPRUN_ASSERT(order_ && all_accounted_for());
  report_stopped();
  if (order_->final) return;
  if (!leaving_) return join();
  send(rendezvous::Leave{0, "it cannot start workers again"});
  exit(leaving_->status, leaving_->verdict);
}

// If the daemon comes back soon, the others learn of our end faster from a message than from our
// silence.
void Supervisor::depart() {
  DDPRUN_ASSERT(leaving_ && living_ == 0);
  if (stays_) {
    DDPRUN_ASSERT(!unsent_);
    state_ = State::kStopped;
    awaiting_output_ = 0;
    order_.reset();
    return clear_round();
  }
  if (!unsent_) return exit(leaving_->status, leaving_->verdict);
  if (state_ == State::kLeaving) {
    state_ = State::kStopped;
    awaiting_output_ = 0;
    clear_round();
  }
  give_up_at_ = now_ + options_.leave_limit;
}

void Supervisor::join() {
  DDPRUN_ASSERT(!leaving_ && awaiting_output_ == 0 && living_seated_ == 0);
  state_ = State::kJoining;
  seat_.reset();
  deaths_.clear();
  successes_.clear();
  failed_ = false;
  if (linked_)
    send_join();
  else
    give_up_at_ = now_ + options_.connect_limit;
}

void Supervisor::leave_for(int status, std::optional<Verdict> verdict) {
  if (living_ == 0 && !stays_) return exit(status, std::move(verdict));
  leaving_ = Exit{status, std::move(verdict)};
  preempt_ends_.reset();
  if (living_ == 0) return depart();
  if (state_ != State::kStopping) begin_stop(SIGTERM);
}

// The node has left the run, and its workers end. Whether its launcher stays all the same.
void Supervisor::stay(const rendezvous::Dismiss& dismiss, int status) {
  constexpr std::chrono::seconds kFarewell{5};
  hosts_ = dismiss.hosts;
  const bool is_needed = (dismiss.hosts || dismiss.for_step) && signal_ == 0;
  const bool is_news = is_needed && !std::exchange(stays_, is_needed);
  stays_ = is_needed;
  // There is no time limit for a drained node, or for one with a scheduler that waits for the
  // others.
  const bool is_limited = is_needed && !dismiss.for_step && status == kExitPreempted;
  if (!is_limited)
    stay_ends_.reset();
  else if (!stay_ends_)
    stay_ends_ = std::max(preempted_at_ + options_.grace, now_ + kFarewell);
  if (!is_news) return;
  const auto left = std::chrono::duration_cast<Milliseconds>(stay_ends_.value_or(now_) - now_);
  actions_.push_back(LogLine{
      LogLine::Level::kInfo,
      dismiss.for_step
          ? options_.host +
                " stays until the others of its job step have left: the scheduler might end "
                "them with it"
          : options_.host + " keeps the rendezvous daemon of the others for " +
                (is_limited ? "up to " + seconds_text(left) : "as long as they need it")});
}

// Whether it had stayed.
bool Supervisor::stay_no_longer() {
  stay_ends_.reset();
  return std::exchange(stays_, false);
}

// A pre-empted node has more to do, unless the run has done it: whatever else ended the run.
void Supervisor::exit(int status, std::optional<Verdict> verdict) {
  DDPRUN_ASSERT(state_ != State::kDone);
  if (preempted_ != 0 && status != kExitOk) status = kExitPreempted;
  state_ = State::kDone;
  stay_no_longer();
  preempt_ends_.reset();
  living_ = living_seated_ = awaiting_output_ = 0;
  std::fill(slots_.begin(), slots_.end(), Slot{});
  clear_round();
  kill_at_.reset();
  leavers_at_.reset();
  abandon_at_.reset();
  give_up_at_.reset();
  actions_.push_back(Exit{status, std::move(verdict)});
}

}  // namespace ddprun::agent
