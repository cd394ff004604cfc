#include "agent/supervisor/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {

SignalUse use_of(int signal, int sender, int parent, const SignalRules& rules) {
  const auto is_in = [signal](const std::vector<int>& signals) {
    return std::find(signals.begin(), signals.end(), signal) != signals.end();
  };
  const bool is_for_launcher = signal == SIGUSR1 || signal == SIGUSR2 || is_in(rules.preempts);
  const bool launcher_died = parent != rules.launcher;
  if (rules.launcher != 0 && launcher_died) return SignalUse::kIgnore;
  if (rules.launcher != 0 && is_for_launcher && sender != rules.launcher) return SignalUse::kIgnore;
  return is_in(rules.ends_node) ? SignalUse::kEndsNode : SignalUse::kForward;
}

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
  DDPRUN_ASSERT(!linked_);
  linked_ = ever_linked_ = true;
  if (preempt_ends_) preempt_ends_ = std::max(preemption_ends(), now_ + options_.leave_limit);
  give_up_at_.reset();
  fence_at_.reset();
  if (unsent_) {
    send(*std::exchange(unsent_, std::nullopt));
    return living_ == 0 ? depart() : void();
  }
  if (state_ == State::kJoining && !leaving_) return send_join(), report_preempted();
  // The daemon may have missed anything since the last link; report our state.
  send(rendezvous::Heartbeat{round()});
  announced_ = {};
  notify_slots();
  if (state_ == State::kFinished) send(rendezvous::Finished{round()});
  if (failed_) send_failed();
  if (state_ == State::kStopped && order_) report_stopped();
  report_preempted();
}

void Supervisor::on(const LinkDown& down) {
  DDPRUN_ASSERT(!linked_ || (!fence_at_ && !unsent_));  // It may be an attempt that failed.
  const bool was_linked = std::exchange(linked_, false);
  why_down_ = down.why;
  if (preempt_ends_) preempt_ends_ = std::min(*preempt_ends_, now_ + options_.leave_limit);
  if (was_linked) {
    arm_fence();
    const std::string what = state_ == State::kStopping ? "workers are ending" : "workers continue";
    const std::string until =
        what + (fence_at_
                    ? "; they are killed in " +
                          seconds_text(std::chrono::duration_cast<Milliseconds>(options_.fence)) +
                          " unless it answers; "
                    : ", ");
    actions_.push_back(LogLine{LogLine::Level::kWarning, "lost the rendezvous daemon (" + down.why +
                                                             "); " + (living_ > 0 ? until : "") +
                                                             "connecting again"});
  }
  if (fence_at_ && down.answers) fence_at_ = now_ + options_.fence;
  // Those that have left a round, or wait for one, compute nothing.
  const bool busy = living_ > 0 && (state_ == State::kRunning || state_ == State::kStopping);
  if (busy || give_up_at_) return;
  const bool computed = state_ != State::kJoining;
  give_up_at_ = now_ + (computed ? report_limit() : options_.connect_limit);
}

void Supervisor::on(const Received& received) {
  std::visit([&](const auto& message) { receive(message); }, received.message);
}

void Supervisor::receive(const rendezvous::Assign& assign) {
  // Workers of another round are still here, or this is the seat we hold: nothing to do.
  if (state_ != State::kJoining || leaving_ || assign.seat.round <= last_round_) return;
  DDPRUN_ASSERT(awaiting_output_ == 0 && !seat_ && !kill_at_ && !abandon_at_);
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

void Supervisor::receive(const rendezvous::EndRun& end) {
  const bool succeeded = end.verdict.exit_code == kExitOk;
  const bool stayed = stay_no_longer();
  if (dismissed_ && !stayed && !succeeded) return;  // Its part had ended before, and well.
  const int status = dismissed_ && !succeeded ? leaving_->status : end.verdict.exit_code;
  leave_for(status, end.verdict);
}

void Supervisor::receive(const rendezvous::Refuse& refuse) {
  actions_.push_back(LogLine{LogLine::Level::kError, "the rendezvous daemon refused " +
                                                         options_.host + ": " + refuse.reason});
  leave_for(kExitRendezvous, std::nullopt);
}

void Supervisor::on(const CannotRead& message) {
  if (leaving_) return;
  actions_.push_back(
      LogLine{LogLine::Level::kError, options_.host + " cannot stay in the run: " + message.what});
  send(rendezvous::Leave{0, message.what});
  leave_for(kExitRendezvous, std::nullopt);
}

void Supervisor::receive(const rendezvous::Dismiss& dismiss) {
  const bool first = !std::exchange(dismissed_, true);
  if (first) {
    const std::string text =
        preempted_ != 0 || dismiss.waits
            ? options_.host + " has left the run" +
                  (dismiss.waits ? ", which waits for another node: " : ": ") + dismiss.reason
            : "the run continues without " + options_.host + ": " + dismiss.reason;
    actions_.push_back(LogLine{LogLine::Level::kInfo, text});
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
  DDPRUN_ASSERT(!ended.output_follows || !success);
  Slot& slot = slots_.at(static_cast<std::size_t>(death.local_rank));
  const bool was_alive = std::exchange(slot.alive, false);
  DDPRUN_ASSERT(was_alive);
  --living_;
  if (living_ == 0) {  // No worker is left to kill, even if reports of them are still to come.
    kill_at_.reset();
    leavers_at_.reset();
    abandon_at_.reset();
  }
  if (!slot.seated) return end_without_seat(ended, slot);
  DDPRUN_ASSERT(!death.stopped_by_us || state_ == State::kStopping || state_ == State::kLeaving);
  --living_seated_;
  slot.done = success;
  awaiting_output_ += ended.output_follows ? 1 : 0;
  if (!success && state_ == State::kRunning) {
    if (!ended.output_follows) announce(death);
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

// After its own last words, which the console has by now. Only an end of the run has a verdict, so
// that a restart would not name what has taken the memory.
void Supervisor::announce(const WorkerDeath& death) {
  DDPRUN_ASSERT(!death.succeeded());
  const bool is_memory = death.fault == Fault::kOutOfMemory && !death.evidence.empty();
  actions_.push_back(LogLine{LogLine::Level::kError,
                             "rank " + std::to_string(death.rank) + " (pid " +
                                 std::to_string(death.pid) + ") " + how_it_ended(death) +
                                 (is_memory ? ": " + death.evidence : ""),
                             LogLine::About::kDeath});
}

void Supervisor::on(const LastOutput& words) {
  const auto known = std::find_if(deaths_.begin(), deaths_.end(), [&](const WorkerDeath& death) {
    return death.local_rank == words.death.local_rank && death.pid == words.death.pid;
  });
  if (known == deaths_.end()) {  // It had no seat. While its node stops, nothing waits for it.
    if (std::erase(fallen_awaiting_output_, words.death.pid) > 0) announce_fallen(words.death);
    return;
  }
  if (awaiting_output_ == 0) return;  // We did not wait for them.
  --awaiting_output_;
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
  actions_.push_back(LogLine{LogLine::Level::kError, failed.death.detail});
  fail(failed.death, now_);
}

void Supervisor::on(const Signalled& signalled) {
  if (request_leave(signalled.signal)) return;
  stop_leavers(SIGTERM);
  if (signal_ != 0) {
    if (now_ - signal_at_ < options_.patience) return;
    const auto since_ms = std::chrono::duration_cast<Milliseconds>(now_ - signal_at_);
    actions_.push_back(LogLine{
        LogLine::Level::kWarning,
        "a second signal, " + seconds_text(since_ms) + " after the first: killing the workers"});
    kill_workers();
    unsent_.reset();
    return living_ == 0 ? depart() : void();
  }
  const char* name = ::sigabbrev_np(signalled.signal);
  const std::string interrupted = std::string("interrupted by SIG") + (name ? name : "?") +
                                  (signalled.why.empty() ? "" : ": " + signalled.why);
  leave_at_once(signalled.signal,
                is_preemption(signalled.signal) ? preemption_text() : interrupted);
}

// The others are notified which it was: a person interrupts a run, a scheduler takes a node out of
// it.
void Supervisor::leave_at_once(int signal, const std::string& text) {
  signal_ = signal;
  signal_at_ = now_;
  stay_no_longer();
  preempt_ends_.reset();
  actions_.push_back(
      LogLine{LogLine::Level::kInfo, text + (living_ > 0 ? "; stopping the workers" : "")});
  const rendezvous::Leave leave{signal, text, preempted_ != 0};
  if (linked_) {
    send(leave);
  } else if (ever_linked_ && !dismissed_) {
    unsent_ = leave;
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
    actions_.push_back(
        LogLine{LogLine::Level::kWarning,
                number_of(living_, "worker") + " did not end in time: killing the rest"});
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
    actions_.push_back(LogLine{LogLine::Level::kWarning,
                               "every worker of this node exited with 0, but there is no "
                               "rendezvous daemon to report to" +
                                   why});
    return leave_for(0, std::nullopt);
  }
  actions_.push_back(LogLine{LogLine::Level::kError, "no rendezvous daemon" + why + "; giving up"});
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

// The part of a Supervisor that fills places: which worker is started after one has ended.
void Supervisor::spawn(Slot& slot) {
  DDPRUN_ASSERT(!slot.alive && !slot.done);
  slot = Slot{.alive = true};
  ++living_;
  actions_.push_back(SpawnWorker{static_cast<int>(&slot - slots_.data()), restart_count_});
}

// Workers that ended in the round are replaced at once.
void Supervisor::spawn_missing(bool fallen_too) {
  for (Slot& slot : slots_) {
    const bool wanted = !slot.fallen || fallen_too;
    if (!slot.alive && !slot.done && wanted) spawn(slot);
  }
}

// Once those that hold seats have shown that they can change them: else a spare is useless.
void Supervisor::spawn_spares() {
  const bool all = std::all_of(slots_.begin(), slots_.end(),
                               [](const Slot& slot) { return !slot.seated || slot.ready; });
  const bool stay = state_ == State::kRunning && keeps_ && all;
  if (stay && options_.spares > 0) spawn_missing(/*fallen_too=*/false);
}

// The workers begin before any node waits for them.
void Supervisor::receive(const rendezvous::Prepare& prepare) {
  if (state_ != State::kJoining || leaving_ || holds_living()) return;
  DDPRUN_ASSERT(living_ == 0 && !seat_);
  keeps_ = newcomer_ = true;
  restart_count_ = prepare.restart_count;
  std::fill(slots_.begin(), slots_.end(), Slot{});
  for (Slot& slot : plain_slots()) spawn(slot);
  actions_.push_back(LogLine{LogLine::Level::kInfo, options_.host + " starts " +
                                                        number_of(living_, "worker") +
                                                        "; they get seats when they are ready"});
  send_join();
}

// Some workers of the round have succeeded, the others have failed, and this node has no worker
// left for a seat. Only a run from the beginning can do the work that is missing.
void Supervisor::start_over() {
  const bool any_done = count([](const Slot& slot) { return slot.done; }) > 0;
  const bool any_left =
      count([](const Slot& slot) { return slot.alive && (slot.worked || slot.resumed); }) > 0;
  if (!any_done || any_left) return;
  actions_.push_back(LogLine{LogLine::Level::kWarning,
                             "the workers of " + options_.host +
                                 " have finished, but others of the round failed: starting again"});
  for (Slot& slot : slots_) {
    if (std::exchange(slot.done, false)) spawn(slot);
  }
}

void Supervisor::receive(const rendezvous::Respawn& respawn) {
  int granted = respawn.granted - respawned_;
  if (granted > 0) {
    respawned_ = respawn.granted;
    restart_count_ = respawn.restart_count;
  }
  const bool goes_on =
      state_ == State::kJoining || state_ == State::kRunning || state_ == State::kLeaving;
  if (!goes_on || leaving_) return;
  for (Slot& slot : slots_) {
    if (slot.fallen && granted-- > 0) spawn(slot);
  }
  if (respawn.refused > 0) report_empty_places();
}

// Empty places do not end the round, so that nothing else would report them.
void Supervisor::report_empty_places() {
  std::vector<int> empty;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.fallen && !std::exchange(slot.given_up, true)) empty.push_back(static_cast<int>(i));
  }
  if (empty.empty()) return;
  const bool one = empty.size() == 1;
  actions_.push_back(LogLine{LogLine::Level::kWarning,
                             (one ? "the place of local rank " : "the places of local ranks ") +
                                 ranges_text(empty) + " on " + options_.host +
                                 (one ? " stays" : " stay") +
                                 " empty, because no restart is left: the run goes on without. A "
                                 "larger --max-restarts allows more"});
}

// A node that has workers, none of which could take a seat; and each worker that cannot, by itself.
void Supervisor::watch_beginners() {
  const bool goes_on =
      (state_ == State::kJoining || state_ == State::kRunning || state_ == State::kLeaving) &&
      !leaving_;
  for (Slot& slot : slots_) {
    const bool begins = slot.alive && !slot.seated && !slot.ready && !slot.plain && !slot.late;
    if (!goes_on || !begins)
      slot.ready_ends.reset();
    else if (!slot.ready_ends)
      slot.ready_ends = now_ + options_.ready_limit;
  }
  const bool waits = state_ == State::kJoining && !leaving_ && holds_living() &&
                     count([](const Slot& slot) { return slot.alive && slot.ready; }) == 0;
  if (!waits) return ready_ends_.reset();
  if (!ready_ends_) ready_ends_ = now_ + options_.ready_limit;
}

// The round continues without these workers, so no other process would notice. Each counts as one
// that failed to start: the daemon orders a replacement while a restart is left.
void Supervisor::kill_late() {
  KillWorkers kill;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.ready_ends || now_ < *slot.ready_ends) continue;
    const bool stood_still = now_ - *std::exchange(slot.ready_ends, std::nullopt) > kStoodStill;
    if (stood_still) continue;  // So did the worker: its time begins anew.
    slot.late = true;
    kill.local_ranks.push_back(static_cast<int>(i));
  }
  if (kill.local_ranks.empty()) return;
  const bool one = kill.local_ranks.size() == 1;
  const auto limit = std::chrono::duration_cast<Milliseconds>(options_.ready_limit);
  actions_.push_back(LogLine{
      LogLine::Level::kError,
      (one ? "local rank " : "local ranks ") + ranges_text(kill.local_ranks) + " of " +
          options_.host + (one ? " has not opened its link" : " have not opened their links") +
          " to ddprun within " + seconds_text(limit) + " and so " + (one ? "has" : "have") +
          " no seat: killing " + (one ? "it" : "them") +
          "; another is started for each while a restart is left. If the program takes longer "
          "to begin, set join_timeout in --rdzv-conf"});
  actions_.push_back(std::move(kill));
}

// A worker that held no seat: a replacement, or one that waited for the next round. That one may
// have finished its work in the round before.
void Supervisor::end_without_seat(const WorkerEnded& ended, Slot& slot) {
  const bool done = (slot.worked || slot.resumed) && ended.death.succeeded();
  const bool was_elastic = slot.ready || slot.plain;
  const bool was_late = slot.late && ended.death.stopped_by_us;
  slot = Slot{.done = done};
  if (state_ == State::kStopping) return all_accounted_for() ? workers_gone() : void();
  if (state_ == State::kFinished) return;
  DDPRUN_ASSERT(!leaving_);
  const bool any_elastic = was_elastic || count([](const Slot& one) { return one.ready; }) > 0;
  if (newcomer_ && ended.death.succeeded() && !any_elastic) {
    // It would do the same again and again, at the cost of the others' restarts.
    return leave_unready("local rank " + std::to_string(ended.death.local_rank) + " (pid " +
                         std::to_string(ended.death.pid) +
                         ") exited with 0 before it opened its link to ddprun");
  }
  if (!done) {
    slot.fallen = true;
    ++fallen_;
    if (ended.output_follows) fallen_awaiting_output_.push_back(ended.death.pid);
    if (!ended.output_follows && !was_late) announce_fallen(ended.death);
  }
  if (state_ != State::kJoining) return notify_slots();
  start_over();
  send_join();
}

bool Supervisor::is_preemption(int signal) const {
  const auto& known = options_.preempt_signals;
  return std::find(known.begin(), known.end(), signal) != known.end();
}

// A node that is to end soon leaves like a drained one. False: it has to end now.
bool Supervisor::request_leave(int signal) {
  if (!is_preemption(signal)) return false;
  // One order may arrive twice.
  if (preempted_ != 0) return now_ - preempted_at_ < options_.patience;
  if (signal_ != 0) return false;
  preempted_ = signal;
  preempted_at_ = now_;
  if (leaving_ || !linked_ || !keeps_) return false;
  preempt_ends_ = preemption_ends();
  report_preempted();
  return true;
}

// On a request to let this node go, the daemon does so at a boundary, or else fences the round.
TimePoint Supervisor::preemption_ends() const {
  return preempted_at_ + options_.grace + 2 * options_.leave_round_limit;
}

std::string Supervisor::preemption_text() const {
  if (preempted_ == kLeaveSignal) return "its host is not listed any more";
  const char* name = ::sigabbrev_np(preempted_);
  return std::string("pre-empted by SIG") + (name ? name : "?");
}

void Supervisor::report_preempted() {
  if (preempted_ == 0 || leaving_) return;
  send(rendezvous::Leave{preempted_, preemption_text(), true});
}

void Supervisor::announce_fallen(const WorkerDeath& death) {
  actions_.push_back(
      LogLine{LogLine::Level::kError, "local rank " + std::to_string(death.local_rank) + " (pid " +
                                          std::to_string(death.pid) + ") " + how_it_ended(death) +
                                          ", before it had a seat"});
}

// It has a seat of a round that it never took part in: its work was over when the round before
// ended. Others of that round have failed, so this round cannot stand for it.
void Supervisor::end_with_a_round_before() {
  DDPRUN_ASSERT(state_ == State::kRunning && seat_);
  order_ = rendezvous::StopRound{round(), "a worker had finished before this round began", false};
  order_->keep = true;
  fence_workers(-1, order_->reason);
}

// What a Supervisor does and is, as text for traces and failed tests.

namespace {

const char* is(const rendezvous::Hello&) { return "hello"; }
const char* is(const rendezvous::Join&) { return "join"; }
const char* is(const rendezvous::Heartbeat&) { return "heartbeat"; }
const char* is(const rendezvous::Finished&) { return "finished"; }
const char* is(const rendezvous::Failed&) { return "failed"; }
const char* is(const rendezvous::Stopped&) { return "stopped"; }
const char* is(const rendezvous::Leave&) { return "leave"; }
const char* is(const rendezvous::Away&) { return "away"; }
const char* is(const rendezvous::Slots&) { return "slots"; }

std::string line(const SendJoin& join) {
  return "send join" + (join.living ? " with " + std::to_string(join.workers) + " living" : "");
}
std::string line(const SendMessage& send) {
  return std::string("send ") + std::visit([](const auto& m) { return is(m); }, send.message);
}
std::string line(const StartWorkers& start) {
  return "start round=" + std::to_string(start.seat.round) +
         " restarts=" + std::to_string(start.seat.restart_count);
}
std::string line(const SpawnWorker& spawn) {
  return "spawn local rank " + std::to_string(spawn.local_rank);
}
std::string line(const SeatWorkers& seat) {
  std::string text = "seat round=" + std::to_string(seat.seat.round) + " local ranks";
  for (const int local_rank : seat.local_ranks) text += " " + std::to_string(local_rank);
  return text;
}
std::string line(const FenceWorkers& fence) { return "fence round=" + std::to_string(fence.round); }
std::string line(const AnnounceChange& change) {
  return "announce change of round=" + std::to_string(change.round);
}
std::string line(const KillWorkers& kill) {
  std::string text = "kill local ranks";
  for (const int local_rank : kill.local_ranks) text += " " + std::to_string(local_rank);
  return text;
}
std::string line(const SignalWorkers& signal) {
  const std::string lost =
      signal.lost_rank < 0 ? "" : ", rank " + std::to_string(signal.lost_rank) + " is lost";
  using Targets = SignalWorkers::Targets;
  const char* targets = signal.targets == Targets::kAll             ? ""
                        : signal.targets == Targets::kAllButLeavers ? ", but not those that leave"
                                                                    : " to those that leave";
  return std::string("signal SIG") + ::sigabbrev_np(signal.signal) + lost + targets;
}
std::string line(const CleanUp&) { return "clean up"; }
std::string line(const AbandonWorkers&) { return "abandon"; }
std::string line(const LogLine& shown) { return "say " + shown.text; }
std::string line(const Exit& exit) { return "exit " + std::to_string(exit.status); }

}  // namespace

std::string to_string(const Action& action) {
  return std::visit([](const auto& a) { return line(a); }, action);
}

std::string Supervisor::describe() const {
  static constexpr const char* kNames[] = {"joining",  "running", "leaving", "finished",
                                           "stopping", "stopped", "done"};
  return std::string(kNames[static_cast<int>(state_)]) + " round=" + std::to_string(round()) +
         " living=" + std::to_string(living_) + (linked_ ? "" : " no link");
}

}  // namespace ddprun::agent
