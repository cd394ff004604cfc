// The part of Agent that starts workers, and shows which it waits for.

#include <utility>

#include "agent/node/agent.h"
#include "agent/node/command.h"
#include "agent/node/start_failure.h"
#include "common/assert.h"
#include "common/text/duration_text.h"

namespace ddprun::agent {

void Agent::spawn_all(const rendezvous::Seat& seat) {
  oom_watch_.begin();
  at_stop_.clear();
  stop_began_ = false;
  wordless_.clear();
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
  DDPRUN_ASSERT(std::ssize(pids) == prepared || pids.back().has_error());
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
  DDPRUN_ASSERT(local_rank >= 0 && local_rank < options_.offer.local_world_size);
  WorkerDeath death = start_failure(why, current_limits(), options_.offer.local_world_size);
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

// While workers are being stopped: which are waited for, and how long.
void Agent::show_stopping() {
  const std::map<int, int> pids = processes_.pids();
  const auto ends = supervisor_.grace_ends();
  if (!ends || !seat_ || pids.empty() || ending_ || !options_.speaks_for_run) {
    if (std::exchange(shows_stopping_, false)) waiting_.done();
    return;
  }
  std::vector<int> ranks;
  for (const auto& [local_rank, pid] : pids) ranks.push_back(seat_->base_rank + local_rank);
  const bool asked = waiting_.on_terminal() && supervisor_.signalled() == SIGINT;
  waiting_.show((ranks.size() == 1 ? "waiting for rank " : "waiting for ranks ") +
                    ranges_text(ranks) + " to end" + (asked ? " (Ctrl-C again kills them)" : ""),
                *ends - std::chrono::steady_clock::now());
  shows_stopping_ = true;
}

}  // namespace ddprun::agent
