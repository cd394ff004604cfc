#include "agent/supervisor/supervisor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {

using rendezvous::AgentMessage;

Supervisor::Supervisor(SupervisorOptions options, TimePoint now)
    : options_(std::move(options)), now_(now), give_up_at_(now + options_.connect_limit) {
  DDPRUN_ASSERT(options_.local_world_size >= 1);
  DDPRUN_ASSERT(options_.spares >= 0);
  slots_.resize(static_cast<std::size_t>(options_.local_world_size + options_.spares));
}

std::vector<Action> Supervisor::step(const Event& event, TimePoint now) {
  DDPRUN_ASSERT(now >= now_);
  DDPRUN_ASSERT(actions_.empty());
  now_ = now;
  if (state_ != State::kDone) std::visit([&](const auto& e) { on(e); }, event);
  watch_beginners();
  return std::exchange(actions_, {});
}

void Supervisor::on(const LinkUp&) {
  DDPRUN_ASSERT(!linked_ && (!fence_at_ || state_ == State::kRunning));
  linked_ = ever_linked_ = true;
  if (preempt_ends_) preempt_ends_ = std::max(preemption_ends(), now_ + options_.leave_limit);
  give_up_at_.reset();
  fence_at_.reset();
  if (unsaid_) {
    send(*std::exchange(unsaid_, std::nullopt));
    return living_ == 0 ? depart() : void();
  }
  if (state_ == State::kJoining && !leaving_) return send_join(), say_preempted();
  // The daemon may have missed anything since the last link; say where we stand.
  send(rendezvous::Heartbeat{round()});
  told_ = {};
  tell_slots();
  if (state_ == State::kFinished) send(rendezvous::Finished{round()});
  if (failed_) send_failed();
  if (state_ == State::kStopped && order_) say_stopped();
  say_preempted();
}

void Supervisor::on(const LinkDown& down) {
  DDPRUN_ASSERT(!linked_ || (!fence_at_ && !unsaid_));  // It may be an attempt that failed.
  const bool was_linked = std::exchange(linked_, false);
  why_down_ = down.why;
  if (preempt_ends_) preempt_ends_ = std::min(*preempt_ends_, now_ + options_.leave_limit);
  if (was_linked) {
    arm_fence();
    const std::string until =
        fence_at_ ? "workers continue; they are stopped in " +
                        seconds_text(std::chrono::duration_cast<Milliseconds>(options_.fence)) +
                        " unless it answers; "
                  : "workers continue, ";
    actions_.push_back(Say{Say::Level::kWarning, "lost the rendezvous daemon (" + down.why + "); " +
                                                     (living_ > 0 ? until : "") +
                                                     "connecting again"});
  }
  if (fence_at_ && down.answers) fence_at_ = now_ + options_.fence;
  // Those that have left a round, or wait for one, compute nothing.
  const bool busy = living_ > 0 && (state_ == State::kRunning || state_ == State::kStopping);
  if (busy || give_up_at_) return;
  const bool computed = state_ != State::kJoining;
  give_up_at_ = now_ + (computed ? report_limit() : options_.connect_limit);
}

void Supervisor::on(const Heard& heard) {
  std::visit([&](const auto& message) { hear(message); }, heard.message);
}

void Supervisor::hear(const rendezvous::Assign& assign) {
  // Workers of another round are still here, or this is the seat we hold: nothing to do.
  if (state_ != State::kJoining || leaving_ || assign.seat.round <= last_round_) return;
  DDPRUN_ASSERT(wordless_ == 0 && !seat_ && !kill_at_ && !abandon_at_);
  DDPRUN_ASSERT(!failed_ && deaths_.empty() && successes_.empty());
  last_round_ = assign.seat.round;
  restart_count_ = assign.seat.restart_count;
  order_.reset();
  fenced_ = false;
  if (holds_living()) return seat_living(assign.seat);
  DDPRUN_ASSERT(living_ == 0);
  take_seat(assign.seat);
  living_ = living_seated_ = options_.local_world_size;
  std::fill(slots_.begin(), slots_.end(), Slot{});
  for (Slot& slot : plain_slots()) slot = Slot{.alive = true, .seated = true};
  actions_.push_back(StartWorkers{*seat_});
}

void Supervisor::hear(const rendezvous::EndRun& end) {
  const bool succeeded = end.verdict.exit_code == kExitOk;
  const bool stayed = stay_no_longer();
  if (dismissed_ && !stayed && !succeeded) return;  // Its part had ended before, and well.
  const int status = dismissed_ && !succeeded ? leaving_->status : end.verdict.exit_code;
  leave_for(status, end.verdict);
}

void Supervisor::hear(const rendezvous::Refuse& refuse) {
  actions_.push_back(Say{Say::Level::kError,
                         "the rendezvous daemon refused " + options_.host + ": " + refuse.reason});
  leave_for(kExitRendezvous, std::nullopt);
}

void Supervisor::hear(const rendezvous::Dismiss& dismiss) {
  const bool first = !std::exchange(dismissed_, true);
  if (first) {
    const std::string text =
        preempted_ != 0 || dismiss.waits
            ? options_.host + " has left the run" +
                  (dismiss.waits ? ", which waits for another node: " : ": ") + dismiss.reason
            : "the run continues without " + options_.host + ": " + dismiss.reason;
    actions_.push_back(Say{Say::Level::kInfo, text});
  }
  preempt_ends_.reset();
  const bool has_more_to_do = preempted_ != 0 && state_ != State::kFinished;
  const int status = leaving_ ? leaving_->status : has_more_to_do ? kExitPreempted : kExitOk;
  stay(dismiss, status);
  leave_for(status, std::nullopt);
}

void Supervisor::on(const WorkerEnded& ended) {
  DDPRUN_ASSERT(state_ != State::kStopped && living_ > 0);
  const WorkerDeath& death = ended.death;
  const bool success = death.succeeded();
  kept_steps_ = std::max(kept_steps_, death.kept_steps);
  DDPRUN_ASSERT(!ended.words_follow || !success);
  Slot& slot = slots_.at(static_cast<std::size_t>(death.local_rank));
  const bool was_alive = std::exchange(slot.alive, false);
  DDPRUN_ASSERT(was_alive);
  --living_;
  if (living_ == 0) {  // Nobody is left to kill, whatever is still to be heard of them.
    kill_at_.reset();
    leavers_at_.reset();
    abandon_at_.reset();
  }
  if (!slot.seated) return end_without_seat(ended, slot);
  DDPRUN_ASSERT(!death.stopped_by_us || state_ == State::kStopping || state_ == State::kLeaving);
  --living_seated_;
  slot.done = success;
  wordless_ += ended.words_follow ? 1 : 0;
  if (!success && state_ == State::kRunning) {
    if (!ended.words_follow) announce(death);
    return fail(death, ended.noticed.value_or(now_));
  }
  (success ? successes_ : deaths_).push_back(death);
  if (rendezvous::shows_cause(deaths_, successes_)) stop_leavers(SIGTERM);
  if (state_ == State::kStopping) return all_accounted_for() ? workers_gone() : void();
  const bool took_part = !slot.worked || slot.resumed || !elastic();
  if (state_ == State::kRunning && !took_part) return end_with_a_round_before();
  if (state_ == State::kRunning && living_seated_ == 0) return finish();
  try_leave();
}

void Supervisor::finish() {
  DDPRUN_ASSERT(state_ == State::kRunning && living_seated_ == 0 && deaths_.empty());
  state_ = State::kFinished;
  fence_at_.reset();
  change_.reset();
  change_ends_.reset();
  if (!linked_) give_up_at_ = now_ + report_limit();
  send(rendezvous::Finished{round()});
  if (living_ == 0) return;
  kill_at_ = now_ + options_.grace;  // The parked ones will not be needed.
  actions_.push_back(SignalWorkers{SIGTERM});
}

// The round ends because of it: nothing has failed before.
void Supervisor::fail(WorkerDeath death, TimePoint noticed) {
  DDPRUN_ASSERT(state_ == State::kRunning && !failed_ && deaths_.empty());
  deaths_.push_back(std::move(death));
  failed_ = true;
  failed_at_ = noticed;
  send_failed();
  if (!elastic()) return begin_stop(SIGTERM);
  const WorkerDeath& first = *failure();
  fence_workers(first.rank, "rank " + std::to_string(first.rank) + " " + how_it_ended(first));
}

void Supervisor::send_failed() {
  const auto noticed =
      std::chrono::duration_cast<std::chrono::microseconds>(failed_at_.time_since_epoch());
  send(rendezvous::Failed{round(), *failure(), noticed.count(), options_.clock});
}

// After its own last words, which the console has by now.
void Supervisor::announce(const WorkerDeath& death) {
  DDPRUN_ASSERT(!death.succeeded());
  actions_.push_back(Say{Say::Level::kError,
                         "rank " + std::to_string(death.rank) + " (pid " +
                             std::to_string(death.pid) + ") " + how_it_ended(death),
                         Say::About::kDeath});
}

void Supervisor::on(const WordsCame& words) {
  const auto known = std::find_if(deaths_.begin(), deaths_.end(), [&](const WorkerDeath& death) {
    return death.local_rank == words.death.local_rank && death.pid == words.death.pid;
  });
  if (known == deaths_.end() && wordless_fallen_ > 0) {
    --wordless_fallen_;
    return announce_fallen(words.death);
  }
  if (wordless_ == 0) return;  // We did not wait for them.
  --wordless_;
  DDPRUN_ASSERT(known != deaths_.end());
  DDPRUN_ASSERT(known->stopped_by_us == words.death.stopped_by_us);
  *known = words.death;
  if (failed_ && known == deaths_.begin()) announce(*known);
  if (rendezvous::shows_cause(deaths_, successes_)) stop_leavers(SIGTERM);
  if (state_ == State::kStopping && all_accounted_for()) return workers_gone();
  try_leave();
}

void Supervisor::on(const StartFailed& failed) {
  DDPRUN_ASSERT(state_ == State::kRunning && living_ > 0);
  for (Slot& slot : plain_slots().subspan(static_cast<std::size_t>(failed.death.local_rank))) {
    DDPRUN_ASSERT(slot.seated && slot.alive);
    slot.alive = false;
    --living_, --living_seated_;
  }
  actions_.push_back(Say{Say::Level::kError, failed.death.detail});
  fail(failed.death, now_);
}

void Supervisor::on(const Signalled& signalled) {
  if (ask_to_leave(signalled.signal)) return;
  stop_leavers(SIGTERM);
  if (signal_ != 0) {
    if (now_ - signal_at_ < options_.patience) return;
    const auto since_ms = std::chrono::duration_cast<Milliseconds>(now_ - signal_at_);
    actions_.push_back(Say{Say::Level::kWarning, "a second signal, " + seconds_text(since_ms) +
                                                     " after the first: killing the workers"});
    kill_workers();
    unsaid_.reset();
    return living_ == 0 ? depart() : void();
  }
  const char* name = ::sigabbrev_np(signalled.signal);
  const std::string interrupted = std::string("interrupted by SIG") + (name ? name : "?") +
                                  (signalled.why.empty() ? "" : ": " + signalled.why);
  leave_at_once(signalled.signal,
                is_preemption(signalled.signal) ? preemption_text() : interrupted);
}

// The others are told what it was: a person interrupts a run, a scheduler takes a node out of it.
void Supervisor::leave_at_once(int signal, const std::string& text) {
  signal_ = signal;
  signal_at_ = now_;
  stay_no_longer();
  preempt_ends_.reset();
  actions_.push_back(Say{Say::Level::kInfo, text + (living_ > 0 ? "; stopping the workers" : "")});
  const rendezvous::Leave leave{signal, text, preempted_ != 0};
  if (linked_) {
    send(leave);
  } else if (ever_linked_ && !dismissed_) {
    unsaid_ = leave;
  }
  // The launcher of one that hosts the daemon of others knows by kExitPreempted that they go on.
  if (!dismissed_ || hosts_) {
    leaving_ = Exit{dismissed_ ? kExitPreempted : exit_code_of_signal(signal), std::nullopt};
  }
  if (living_ == 0) return depart();
  const bool is_ours = signal == kLeaveSignal;  // Workers know nothing of it.
  const bool is_end = is_preemption(signal) || is_ours;
  if (state_ != State::kStopping) begin_stop(is_end ? SIGTERM : signal);
}

void Supervisor::on(const Tick&) {
  if (kill_at_ && now_ >= *kill_at_) {
    actions_.push_back(Say{Say::Level::kWarning, number_of(living_, "worker") +
                                                     " did not end in time: killing the rest"});
    kill_workers();
  }
  if (leavers_at_ && now_ >= *leavers_at_) stop_leavers(SIGTERM);
  if (abandon_at_ && now_ >= *abandon_at_) return abandon_workers();
  if (fence_at_ && now_ >= *fence_at_) return cut_off();
  if (change_ends_ && now_ >= *change_ends_) return end_change();
  if (leave_ends_ && now_ >= *leave_ends_) kill_those_that_stay();
  if (ready_ends_ && now_ >= *ready_ends_) return give_up_beginners();
  if (stay_ends_ && now_ >= *stay_ends_) {
    stay_no_longer();
    if (living_ == 0) return depart();
  }
  if (preempt_ends_ && now_ >= *preempt_ends_) {
    return leave_at_once(preempted_, preemption_text() + "; the daemon has not let it go in time");
  }
  kill_late();
  if (!give_up_at_ || now_ < *give_up_at_) return;
  give_up_at_.reset();
  stay_no_longer();
  if (leaving_) return leave_for(leaving_->status, leaving_->verdict);
  const std::string why = why_down_.empty() ? "" : " (" + why_down_ + ")";
  if (state_ == State::kFinished) {
    actions_.push_back(Say{Say::Level::kWarning,
                           "every worker of this node exited with 0, but there is no "
                           "rendezvous daemon to report to" +
                               why});
    return leave_for(0, std::nullopt);
  }
  actions_.push_back(Say{Say::Level::kError, "no rendezvous daemon" + why + "; giving up"});
  leave_for(failed_ ? exit_status(*failure()) : kExitRendezvous, std::nullopt);
}

void Supervisor::send(AgentMessage message) {
  if (linked_) actions_.push_back(SendMessage{std::move(message)});
}

std::optional<TimePoint> Supervisor::deadline() const {
  std::optional<TimePoint> next;
  for (const auto& at : {kill_at_, leavers_at_, abandon_at_, give_up_at_, fence_at_, change_ends_,
                         leave_ends_, ready_ends_, preempt_ends_, stay_ends_}) {
    if (at && (!next || *at < *next)) next = at;
  }
  for (const Slot& slot : slots_) {
    if (slot.ready_ends && (!next || *slot.ready_ends < *next)) next = slot.ready_ends;
  }
  return next;
}

}  // namespace ddprun::agent
