// The part of Agent that starts workers and finds out how they ended.

#include <unistd.h>

#include <csignal>
#include <utility>

#include "agent/agent.h"
#include "agent/command.h"
#include "agent/fault.h"
#include "agent/last_words.h"
#include "agent/start_failure.h"
#include "common/duration_text.h"
#include "rendezvous/verdict.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kLastWordsWait = 10ms;  // For what a dead worker still has in its pipe.

}  // namespace

void Agent::spawn_all(const rendezvous::Seat& seat) {
  oom_watch_.begin();
  failing_.clear();
  int prepared = 0;
  std::optional<Failure> why;
  for (bool go_on = true; go_on && prepared < options_.offer.local_world_size;) {
    auto ends = output_.open({.local_rank = prepared,
                              .rank = seat.base_rank + prepared,
                              .restart_count = seat.restart_count});
    if (!ends) {
      why = ends.error();
      break;
    }
    go_on = processes_.spawn_soon(worker_spec(seat, prepared), std::move(*ends));
    ++prepared;
  }
  const auto pids = processes_.finish_spawns();
  int living = 0;
  for (; living < prepared && pids[static_cast<std::size_t>(living)]; ++living) {
    progress_.started(living, seat.base_rank + living, *pids[static_cast<std::size_t>(living)]);
  }
  for (int rank = living; rank < prepared; ++rank) {
    output_.exited(rank);
    progress_.exited(rank);
  }
  if (living < prepared) why = pids[static_cast<std::size_t>(living)].error();
  if (why) cannot_start(seat, living, *why);
}

void Agent::cannot_start(const rendezvous::Seat& seat, int local_rank, const Failure& why) {
  rendezvous::WorkerDeath death =
      start_failure(why, current_limits(), options_.offer.local_world_size);
  death.rank = seat.base_rank + local_rank;
  death.local_rank = local_rank;
  death.host = options_.offer.host;
  dispatch(StartFailed{death});
}

WorkerSpec Agent::worker_spec(const rendezvous::Seat& seat, int local_rank) {
  WorkerContext context;
  context.error_file = logs_.error_file(seat.restart_count, local_rank);
  context.signals_to_handle = options_.signals_to_handle;
  context.virtual_local_rank = options_.virtual_local_rank;
  context.shares_machine = options_.shares_machine;
  context.shared_gpus = options_.shared_gpus;
  const auto place = static_cast<std::size_t>(local_rank);
  if (place < options_.omp_threads.size()) context.omp_threads = options_.omp_threads[place];
  context.terminal_columns = output_.terminal_columns();
  if (std::string page = progress_.prepare(local_rank); !page.empty()) {
    context.extra.push_back(std::move(page));
  }
  WorkerSpec spec;
  spec.local_rank = local_rank;
  spec.limits = options_.worker_limits;
  if (place < options_.processors.size()) spec.processors = options_.processors[place];
  spec.argv = command_for_rank(options_.command, local_rank);
  spec.environment = worker_environment(rank_facts(seat, local_rank), context, environment_);
  return spec;
}

RankFacts Agent::rank_facts(const rendezvous::Seat& seat, int local_rank) const {
  RankFacts facts;
  facts.rank = seat.base_rank + local_rank;
  facts.local_rank = local_rank;
  facts.world_size = seat.world_size;
  facts.local_world_size = options_.offer.local_world_size;
  facts.group_rank = seat.group_rank;
  facts.group_world_size = seat.group_world_size;
  facts.role_rank = seat.role_base_rank + local_rank;
  facts.role_world_size = seat.role_world_size;
  facts.role = options_.offer.role;
  facts.master_addr = seat.master_address;
  facts.master_port = seat.master_port;
  facts.restart_count = seat.restart_count;
  facts.max_restarts = options_.offer.config.max_restarts;
  facts.run_id = options_.run_id;
  return facts;
}

// A success is reported at once; a failure as soon as its last words have come through the pipe.
void Agent::worker_exited(const WorkerExit& exit) {
  output_.exited(exit.local_rank);
  progress_.exited(exit.local_rank);
  const bool failed = exit.exit_code != 0 || exit.signal != 0;
  const auto [it, is_new] =
      pending_.try_emplace(exit.local_rank, Pending{exit, boost::asio::steady_timer(loop_)});
  if (!failed || !supervisor_.running() || output_.drained(exit.local_rank))
    return report(exit.local_rank);
  it->second.patience.expires_after(kLastWordsWait);
  it->second.patience.async_wait(
      [this, local_rank = exit.local_rank](const boost::system::error_code& ec) {
        if (!ec) report(local_rank);
      });
}

void Agent::report(int local_rank) {
  const auto it = pending_.find(local_rank);
  if (it == pending_.end()) return;
  const WorkerExit exit = it->second.exit;
  pending_.erase(it);
  if (supervisor_.living() > 0) dispatch(WorkerEnded{death_of(exit)});
}

rendezvous::WorkerDeath Agent::death_of(const WorkerExit& exit) const {
  rendezvous::WorkerDeath death;
  death.local_rank = exit.local_rank;
  death.rank = (seat_ ? seat_->base_rank : 0) + exit.local_rank;
  death.pid = exit.pid;
  death.host = options_.offer.host;
  death.exit_code = exit.exit_code;
  death.signal = exit.signal;
  const auto said = failing_.find(exit.local_rank);
  const bool failed = exit.exit_code != 0 || exit.signal != 0;
  death.was_failing = failed && !supervisor_.running() && said != failing_.end();
  if (!failed || (!supervisor_.running() && !death.was_failing)) return death;
  death.detail = death.was_failing ? said->second : words_of(exit.local_rank);
  if (exit.signal == SIGKILL) death.evidence = oom_watch_.evidence(exit.pid);
  rendezvous::WorkerDeath without_us = death;  // What our signal made of it is not its fault.
  if (rendezvous::cut_short(death)) without_us.exit_code = 1, without_us.signal = 0;
  death.fault = classify(without_us, death.detail, !death.evidence.empty());
  death.blames = rank_blamed(death.detail);
  const std::string stuck = progress_.reason(exit.local_rank);
  if (!stuck.empty()) death.detail = stuck + (death.detail.empty() ? "" : "\n" + death.detail);
  return death;
}

std::string Agent::words_of(int local_rank) const {
  return last_words(output_.last_lines(local_rank),
                    logs_.error_file(seat_ ? seat_->restart_count : 0, local_rank));
}

// A stop begins. Who has already reported an exception was about to end by itself, and may be the
// reason why others, which were faster, have lost a peer.
void Agent::note_failing() {
  if (!seat_ || !failing_.empty()) return;
  for (int local_rank = 0; local_rank < options_.offer.local_world_size; ++local_rank) {
    const std::string error_file = logs_.error_file(seat_->restart_count, local_rank);
    const bool reported = !error_file.empty() && ::access(error_file.c_str(), F_OK) == 0;
    if (reported || ends_in_exception(output_.last_lines(local_rank))) {
      failing_[local_rank] = words_of(local_rank);
    }
  }
}

// While workers are being stopped: which are waited for, and how long.
void Agent::show_stopping() {
  const std::vector<int> local_ranks = processes_.living_ranks();
  const auto ends = supervisor_.grace_ends();
  if (!ends || !seat_ || local_ranks.empty() || ending_ || !options_.speaks_for_run) {
    if (std::exchange(shows_stopping_, false)) waiting_.done();
    return;
  }
  std::vector<int> ranks;
  for (const int local_rank : local_ranks) ranks.push_back(seat_->base_rank + local_rank);
  const bool asked = waiting_.on_terminal() && supervisor_.signalled() == SIGINT;
  waiting_.show((ranks.size() == 1 ? "waiting for rank " : "waiting for ranks ") +
                    ranges_text(ranks) + " to end" + (asked ? " (Ctrl-C again kills them)" : ""),
                *ends - std::chrono::steady_clock::now());
  shows_stopping_ = true;
}

}  // namespace ddprun::agent
