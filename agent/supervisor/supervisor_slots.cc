// The part of a Supervisor that fills places: who is started in one whose worker has ended.

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/supervisor/supervisor.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/text/figures.h"

namespace ddprun::agent {

void Supervisor::spawn(Slot& slot) {
  DDPRUN_ASSERT(!slot.alive && !slot.done);
  slot = Slot{.alive = true};
  ++living_;
  actions_.push_back(SpawnWorker{static_cast<int>(&slot - slots_.data()), restart_count_});
}

// Whoever ended in the round is replaced at once.
void Supervisor::spawn_missing(bool fallen_too) {
  for (Slot& slot : slots_) {
    const bool wanted = !slot.fallen || fallen_too;
    if (!slot.alive && !slot.done && wanted) spawn(slot);
  }
}

// Once those that hold seats have shown that they can change them: else a spare is of no use.
void Supervisor::spawn_spares() {
  const bool all = std::all_of(slots_.begin(), slots_.end(),
                               [](const Slot& slot) { return !slot.seated || slot.ready; });
  const bool stay = state_ == State::kRunning && keeps_ && all;
  if (stay && options_.spares > 0) spawn_missing(/*fallen_too=*/false);
}

// The workers begin before anybody waits for them.
void Supervisor::hear(const rendezvous::Prepare& prepare) {
  if (state_ != State::kJoining || leaving_ || holds_living()) return;
  DDPRUN_ASSERT(living_ == 0 && !seat_);
  keeps_ = newcomer_ = true;
  restart_count_ = prepare.restart_count;
  std::fill(slots_.begin(), slots_.end(), Slot{});
  for (Slot& slot : plain_slots()) spawn(slot);
  actions_.push_back(Say{Say::Level::kInfo, options_.host + " starts " +
                                                number_of(living_, "worker") +
                                                "; they get seats when they are ready"});
  send_join();
}

// Of those that were in a round, some have ended well and the others not, and nobody is left whom
// this node could seat. What is missing only a whole run can make good.
void Supervisor::start_over() {
  const bool any_done = count([](const Slot& slot) { return slot.done; }) > 0;
  const bool any_left =
      count([](const Slot& slot) { return slot.alive && (slot.worked || slot.resumed); }) > 0;
  if (!any_done || any_left) return;
  actions_.push_back(Say{Say::Level::kWarning,
                         "the workers of " + options_.host +
                             " have finished, but others of the round failed: starting again"});
  for (Slot& slot : slots_) {
    if (std::exchange(slot.done, false)) spawn(slot);
  }
}

void Supervisor::hear(const rendezvous::Respawn& respawn) {
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
  if (respawn.refused > 0) say_empty_places();
}

// The round does not end for them, so that nothing else would be said.
void Supervisor::say_empty_places() {
  std::vector<int> empty;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.fallen && !std::exchange(slot.given_up, true)) empty.push_back(static_cast<int>(i));
  }
  if (empty.empty()) return;
  const bool one = empty.size() == 1;
  actions_.push_back(Say{Say::Level::kWarning,
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

// The round is smaller without them and goes on, so that nobody else would notice. Each counts as
// one that failed to start: the daemon has it replaced while a restart is left.
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
  actions_.push_back(
      Say{Say::Level::kError,
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
    wordless_fallen_ += ended.words_follow ? 1 : 0;
    if (!ended.words_follow && !was_late) announce_fallen(ended.death);
  }
  if (state_ != State::kJoining) return tell_slots();
  start_over();
  send_join();
}

bool Supervisor::is_preemption(int signal) const {
  const auto& known = options_.preempt_signals;
  return std::find(known.begin(), known.end(), signal) != known.end();
}

// A node that is to end soon leaves like a drained one. False: it has to end now.
bool Supervisor::ask_to_leave(int signal) {
  if (!is_preemption(signal)) return false;
  // One order may arrive twice.
  if (preempted_ != 0) return now_ - preempted_at_ < options_.patience;
  if (signal_ != 0) return false;
  preempted_ = signal;
  preempted_at_ = now_;
  if (leaving_ || !linked_ || !keeps_) return false;
  preempt_ends_ = preemption_ends();
  say_preempted();
  return true;
}

// Asked to let this node go, the daemon does so at a boundary, or else fences the round.
TimePoint Supervisor::preemption_ends() const {
  return preempted_at_ + options_.grace + 2 * options_.leave_round_limit;
}

std::string Supervisor::preemption_text() const {
  if (preempted_ == kLeaveSignal) return "its host is not listed any more";
  const char* name = ::sigabbrev_np(preempted_);
  return std::string("pre-empted by SIG") + (name ? name : "?");
}

void Supervisor::say_preempted() {
  if (preempted_ == 0 || leaving_) return;
  send(rendezvous::Leave{preempted_, preemption_text(), true});
}

void Supervisor::announce_fallen(const WorkerDeath& death) {
  actions_.push_back(Say{Say::Level::kError, "local rank " + std::to_string(death.local_rank) +
                                                 " (pid " + std::to_string(death.pid) + ") " +
                                                 how_it_ended(death) + ", before it had a seat"});
}

// It has a seat of a round that it never took part in: its work was over when the round before
// ended. Others of that round have failed, so this round cannot stand for it.
void Supervisor::end_with_a_round_before() {
  DDPRUN_ASSERT(state_ == State::kRunning && seat_);
  order_ = rendezvous::StopRound{round(), "a worker had finished before this round began", false};
  order_->keep = true;
  fence_workers(-1, order_->reason);
}

}  // namespace ddprun::agent
