// The part of Agent that starts workers, and shows which it waits for.

#include <algorithm>
#include <numeric>
#include <utility>

#include "agent/node/agent.h"
#include "agent/node/command.h"
#include "agent/node/start_failure.h"
#include "agent/process/cgroup_values.h"
#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::agent {

// What the kernel has counted and logged so far is not about workers that are started now.
void Agent::begin_watches() {
  oom_watch_.begin();
  gpu_log_.begin(std::chrono::duration_cast<std::chrono::microseconds>(
                     std::chrono::steady_clock::now().time_since_epoch())
                     .count());
}

// All workers of this node, in a new round.
void Agent::begin_places() {
  DDPRUN_ASSERT(seat_);
  begin_watches();
  at_stop_.clear();
  stop_began_ = false;
  ++orders_;
  wordless_.clear();
  change_.reset();
  places_.clear();
  const int workers = options_.offer.local_world_size;
  if (seat_->lost_steps > 0) {
    std::vector<int> all(static_cast<std::size_t>(workers));
    std::iota(all.begin(), all.end(), 0);
    change_.emplace(all, seat_->lost_steps);
  }
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    places_[local_rank] = {.facts = rank_facts(*seat_, local_rank, local_rank, workers),
                           .restart_count = seat_->restart_count,
                           .seated = true};
  }
}

// For a worker that has no seat, and never had a predecessor: until it has one, it finds itself
// among the workers of its own node.
void Agent::add_place(int local_rank) {
  if (places_.contains(local_rank)) return;
  RankFacts facts;
  facts.rank = facts.local_rank = facts.role_rank = local_rank;
  facts.world_size = facts.local_world_size = facts.role_world_size = places();
  facts.role = options_.offer.role;
  facts.master_addr = seat_ ? seat_->master_address : options_.offer.address;
  facts.master_port = seat_ ? seat_->master_port : options_.offer.store_port;
  facts.max_restarts = options_.offer.config.max_restarts;
  facts.run_id = options_.run_id;
  places_[local_rank] = {.facts = facts};
}

int Agent::places() const { return options_.offer.local_world_size + options_.supervision.spares; }

// Where no seat is empty, nobody waits for a worker without one.
void Agent::note_reserve() {
  const auto seated = std::count_if(places_.begin(), places_.end(),
                                    [](const auto& place) { return place.second.seated; });
  if (seated < options_.offer.local_world_size) return;
  for (const auto& [local_rank, place] : places_) {
    if (!place.seated) ledger_.in_reserve(local_rank, std::chrono::steady_clock::now());
  }
}

void Agent::spawn_all() {
  int prepared = 0;
  std::optional<Failure> why;
  for (bool go_on = true; go_on && prepared < options_.offer.local_world_size;) {
    auto ends = open_worker(prepared);
    if (!ends) {
      why = ends.error();
      break;
    }
    const bool has_link = static_cast<bool>(ends->link_end);
    go_on = processes_.spawn_soon(worker_spec(prepared, has_link), std::move(*ends));
    ++prepared;
  }
  const auto pids = processes_.finish_spawns();
  DDPRUN_ASSERT(std::ssize(pids) == prepared || pids.back().has_error());
  int living = 0;
  for (; living < prepared && pids[static_cast<std::size_t>(living)]; ++living) {
    progress_.started(living, rank_of(living), *pids[static_cast<std::size_t>(living)]);
    ledger_.spawned(living, rank_of(living), seat_->round, std::chrono::steady_clock::now());
  }
  for (int local_rank = living; local_rank < prepared; ++local_rank) forget_worker(local_rank);
  if (living < prepared) why = pids[static_cast<std::size_t>(living)].error();
  if (why) dispatch(StartFailed{death_at_start(living, *why)});
}

// The agent's ends of all that a worker is connected with; returns the worker's.
Result<WorkerEnds> Agent::open_worker(int local_rank) {
  const Place& place = places_.at(local_rank);
  auto ends = output_.open(
      {.local_rank = local_rank, .rank = place.facts.rank, .restart_count = place.restart_count});
  if (ends) ends->link_end = open_link(local_rank);
  return ends;
}

// It has ended, or was never born.
void Agent::forget_worker(int local_rank) {
  output_.exited(local_rank);
  progress_.exited(local_rank);
  links_.close(local_rank);
  places_.at(local_rank).ending.reset();
}

WorkerDeath Agent::death_at_start(int local_rank, const Failure& why) const {
  DDPRUN_ASSERT(local_rank >= 0 && local_rank < places());
  WorkerDeath death = start_failure(why, current_limits(), places(), fewest_tasks());
  death.rank = rank_of(local_rank);
  death.local_rank = local_rank;
  death.host = options_.offer.host;
  return death;
}

WorkerSpec Agent::worker_spec(int local_rank, bool has_link) {
  const Place& worker = places_.at(local_rank);
  WorkerContext context;
  context.error_file = logs_.error_file(worker.restart_count, local_rank);
  context.signals_to_handle = options_.signals_to_handle;
  context.virtual_local_rank = options_.virtual_local_rank;
  context.shares_machine = options_.shares_machine;
  const WorkerPlacement& placed = options_.placement;
  context.shared_gpus = placed.shared_gpus;
  const auto place = static_cast<std::size_t>(local_rank);
  if (place < placed.omp_threads.size()) context.omp_threads = placed.omp_threads[place];
  if (place < placed.devices.size()) context.device = placed.devices[place];
  context.terminal_columns = output_.terminal_columns();
  if (std::string page = progress_.prepare(local_rank); !page.empty()) {
    context.extra.push_back(std::move(page));
  }
  const std::string dump = logs_.dump_file(worker.restart_count, local_rank);
  for (std::string& variable : recorders_.variables(local_rank, dump)) {
    context.extra.push_back(std::move(variable));
  }
  if (has_link) {
    context.extra.push_back(std::string(worker_link::kVariable) + "=" +
                            std::to_string(kLinkDescriptor));
  }
  WorkerSpec spec;
  spec.local_rank = local_rank;
  spec.limits = options_.worker_limits;
  if (place < placed.processors.size()) spec.processors = placed.processors[place];
  spec.argv = command_for_rank(options_.command, local_rank);
  spec.environment = worker_environment(worker.facts, context, environment_);
  return spec;
}

// Of the worker at `position` among the node's `workers` of the round.
RankFacts Agent::rank_facts(const rendezvous::Seat& seat, int local_rank, int position,
                            int workers) const {
  DDPRUN_ASSERT(position >= 0 && position <= local_rank && position < workers);
  RankFacts facts;
  facts.rank = seat.base_rank + position;
  facts.local_rank = local_rank;
  facts.world_size = seat.world_size;
  facts.local_world_size = workers;
  facts.group_rank = seat.group_rank;
  facts.group_world_size = seat.group_world_size;
  facts.role_rank = seat.role_base_rank + position;
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
  for (const auto& [local_rank, pid] : pids) {
    if (rank_of(local_rank) >= 0) ranks.push_back(rank_of(local_rank));
  }
  const bool asked = waiting_.on_terminal() && supervisor_.signalled() == SIGINT;
  const std::string who = ranks.empty()
                              ? number_of(static_cast<int>(pids.size()), "worker")
                              : (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
  waiting_.show("waiting for " + who + " to end" + (asked ? " (Ctrl-C again kills them)" : ""),
                *ends - std::chrono::steady_clock::now());
  shows_stopping_ = true;
}

}  // namespace ddprun::agent
