// The part of Agent that finds out how workers ended, and why.

#include <unistd.h>

#include <csignal>
#include <utility>

#include "agent/health/fault.h"
#include "agent/node/agent.h"
#include "agent/node/verdict_file.h"
#include "agent/output/last_words.h"
#include "agent/process/proc_file.h"
#include "common/system/log.h"
#include "common/text/terminal_text.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kLastWordsWait = 10ms;  // For what a dead worker still has in its pipe.

bool failed(const WorkerExit& exit) { return exit.exit_code != 0 || exit.signal != 0; }

}  // namespace

// Every end is reported at once, so that the order of the reports is that of the ends, whoever
// still holds a pipe. The last words of a failed worker may follow.
void Agent::worker_exited(const WorkerExit& exit) {
  output_.exited(exit.local_rank);
  progress_.exited(exit.local_rank);
  if (supervisor_.living() == 0) return;  // It is not waited for.
  const bool before_stop = ended_by_itself(exit.local_rank);
  const bool speaks = failed(exit) && before_stop && !output_.drained(exit.local_rank);
  if (!speaks) return dispatch(WorkerEnded{account_of(exit, before_stop), before_stop});
  auto& wordless =
      wordless_.try_emplace(exit.local_rank, Wordless{exit, boost::asio::steady_timer(loop_)})
          .first->second;
  wordless.patience.expires_after(kLastWordsWait);
  wordless.patience.async_wait(
      [this, local_rank = exit.local_rank](const boost::system::error_code& ec) {
        if (!ec) words_are_there(local_rank);
      });
  dispatch(WorkerEnded{death_of(exit, before_stop), before_stop, /*words_follow=*/true});
}

void Agent::words_are_there(int local_rank) {
  const auto it = wordless_.find(local_rank);
  if (it == wordless_.end()) return;
  const WorkerExit exit = it->second.exit;
  wordless_.erase(it);
  dispatch(WordsCame{account_of(exit, /*before_stop=*/true)});
}

// Nobody had told it to end, or it was on its way out when we did.
bool Agent::ended_by_itself(int local_rank) const {
  const auto at_stop = at_stop_.find(local_rank);
  return !stop_began_ || (at_stop != at_stop_.end() && at_stop->second.exiting);
}

rendezvous::WorkerDeath Agent::death_of(const WorkerExit& exit, bool before_stop) const {
  rendezvous::WorkerDeath death;
  death.local_rank = exit.local_rank;
  death.rank = (seat_ ? seat_->base_rank : 0) + exit.local_rank;
  death.pid = exit.pid;
  death.host = options_.offer.host;
  death.exit_code = exit.exit_code;
  death.signal = exit.signal;
  death.stopped_by_us = !before_stop;
  return death;
}

// With all that shows why.
rendezvous::WorkerDeath Agent::account_of(const WorkerExit& exit, bool before_stop) const {
  rendezvous::WorkerDeath death = death_of(exit, before_stop);
  const auto found = at_stop_.find(exit.local_rank);
  const AtStop at_stop = found == at_stop_.end() ? AtStop() : found->second;
  death.was_failing = failed(exit) && !before_stop && at_stop.failing;
  if (failed(exit) && (before_stop || death.was_failing)) {
    explain(death, death.was_failing ? at_stop.words : words_of(exit.local_rank));
  } else {
    death.evidence = at_stop.halted;
  }
  add_fate(progress_.fate(exit.local_rank), death);
  const std::string stuck = progress_.reason(exit.local_rank);
  if (!stuck.empty()) death.detail = stuck + (death.detail.empty() ? "" : "\n" + death.detail);
  return death;
}

// What its status and its last words say about why it ended.
void Agent::explain(rendezvous::WorkerDeath& death, const std::string& words) const {
  death.detail = words;
  if (death.signal == SIGKILL) death.evidence = oom_watch_.evidence(death.pid);
  rendezvous::WorkerDeath without_us = death;  // What our signal made of it is not its fault.
  if (rendezvous::cut_short(death)) without_us.exit_code = 1, without_us.signal = 0;
  death.fault = classify(without_us, death.detail, !death.evidence.empty());
  death.blames = rank_blamed(death.detail);
}

std::string Agent::words_of(int local_rank) const {
  return last_words(output_.last_lines(local_rank),
                    logs_.error_file(seat_ ? seat_->restart_count : 0, local_rank));
}

// A stop begins. Who is on its way out, or has already reported an exception, ends by itself, and
// may be the reason why others, which were faster, have lost a peer. Who is halted is what others
// have waited for, and has to go on in order to end.
void Agent::look_at_workers() {
  if (!seat_ || std::exchange(stop_began_, true)) return;
  for (const auto& [local_rank, pid] : processes_.pids()) {
    AtStop& worker = at_stop_[local_rank];
    const ProcStat stat = read_proc_stat(pid);
    worker.exiting = stat.exiting;
    if (is_halted(stat.state) && !progress_.paused()) worker.halted = halted_text(stat.state);
    const std::string error_file = logs_.error_file(seat_->restart_count, local_rank);
    const bool reported = !error_file.empty() && ::access(error_file.c_str(), F_OK) == 0;
    worker.failing = reported || ends_in_exception(output_.last_lines(local_rank));
    if (worker.failing) worker.words = words_of(local_rank);
  }
}

// A process that is halted does not act on a signal that it could catch.
void Agent::wake_halted() {
  for (const auto& [local_rank, pid] : processes_.pids()) {
    const char state = read_proc_stat(pid).state;
    if (is_halted(state)) processes_.signal_worker(local_rank, state == 'T' ? SIGCONT : SIGKILL);
  }
}

// On the console, a moment ago: nobody needs to be told twice.
bool Agent::just_shown(const rendezvous::WorkerDeath& death) const {
  constexpr std::uint64_t kNear = 10;  // Lines.
  if (!seat_ || seat_->group_world_size > 1 || death.detail.empty()) return false;
  const auto since = output_.shown_since(death.local_rank);
  if (!since || *since > kNear) return false;
  return death.detail == last_words(output_.last_lines(death.local_rank), /*error_file=*/"");
}

void Agent::tell_verdict(const Exit& exit) const {
  if (!options_.speaks_for_run) return;
  const bool failed = exit.verdict && exit.verdict->kind != rendezvous::Verdict::Kind::kSuccess;
  if (failed) {
    const auto& cause = exit.verdict->first_cause;
    const bool shown = cause && just_shown(*cause);
    log::error(without_escapes(shown ? rendezvous::without_last_words(*exit.verdict)
                                     : exit.verdict->text));
    const std::string hint = cause && options_.hint ? options_.hint(cause->detail) : "";
    if (!hint.empty()) log::info(hint);
  }
  if (exit.status == 0 || options_.verdict_files.empty()) return;
  write_verdict_files(options_.verdict_files, verdict_or(exit.verdict, exit.status, complaint_),
                      options_.run_id);
}

}  // namespace ddprun::agent
