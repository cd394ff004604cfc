// The part of Agent that starts workers, and shows which it waits for.

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <iterator>
#include <numeric>
#include <utility>

#include "agent/node/agent.h"
#include "agent/node/command.h"
#include "agent/node/verdict_file.h"
#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/assert.h"
#include "common/system/log.h"
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
  stop_states_.clear();
  stop_began_ = false;
  ++orders_;
  awaiting_output_.clear();
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
  facts.master_addr = options_.offer.address;
  facts.master_port = options_.offer.store_port;
  if (seat_) place_store(*seat_, facts);
  facts.max_restarts = options_.offer.config.max_restarts;
  facts.run_id = options_.run_id;
  places_[local_rank] = {.facts = facts};
}

int Agent::places() const { return options_.offer.local_world_size + options_.supervision.spares; }

// If no seat is empty, workers without one are in reserve.
void Agent::note_reserve() {
  const auto seated = std::count_if(places_.begin(), places_.end(),
                                    [](const auto& place) { return place.second.seated; });
  if (seated < options_.offer.local_world_size) return;
  for (const auto& [local_rank, place] : places_) {
    if (!place.seated) ledger_.in_reserve(local_rank, std::chrono::steady_clock::now());
  }
}

WorkerStart Agent::start_of(int pid, TimePoint ordered) const {
  return {.preloaded = processes_.is_fork(pid), .took = std::chrono::steady_clock::now() - ordered};
}

void Agent::spawn_all() {
  const TimePoint ordered =
      std::exchange(held_since_, std::nullopt).value_or(std::chrono::steady_clock::now());
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
    const int pid = *pids[static_cast<std::size_t>(living)];
    progress_.started(living, rank_of(living), pid);
    ledger_.spawned(living, rank_of(living), seat_->round, std::chrono::steady_clock::now(),
                    start_of(pid, ordered));
  }
  for (int local_rank = living; local_rank < prepared; ++local_rank) forget_worker(local_rank);
  if (living < prepared) why = pids[static_cast<std::size_t>(living)].error();
  if (why) dispatch(StartFailed{death_at_start(living, *why)});
}

// The agent's ends of all that a worker is connected with; returns the worker's.
Result<WorkerEnds> Agent::open_worker(int local_rank) {
  const Place& place = places_.at(local_rank);
  if (local_rank == 0) imports_.begin();
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

// What does not depend on the process that has the place.
WorkerContext Agent::worker_context(int local_rank) const {
  WorkerContext context;
  context.signals_to_handle = options_.signals_to_handle;
  context.virtual_local_rank = options_.virtual_local_rank;
  context.shares_machine = options_.shares_machine;
  const WorkerPlacement& placed = options_.placement;
  context.shared_gpus = placed.shared_gpus;
  const auto place = static_cast<std::size_t>(local_rank);
  if (place < placed.omp_threads.size()) context.omp_threads = placed.omp_threads[place];
  if (place < placed.devices.size()) context.device = placed.devices[place];
  context.terminal_columns = output_.terminal_columns();
  if (const MemoryPlace& memory = options_.memory; !memory.base.empty()) {
    context.extra = memory_variables(memory.base, memory.bytes);
  }
  if (relay_place_.port != 0) {
    context.extra.push_back(std::string(kRelayVariable) + "=" + to_text(relay_place_));
  }
  return context;
}

// The command and environment that workers will have, as far as they are known without a seat.
WorkerSpec Agent::fork_server_spec() const {
  RankFacts facts;
  facts.world_size = facts.local_world_size = options_.offer.local_world_size;
  facts.role = options_.offer.role;
  facts.run_id = options_.run_id;
  WorkerSpec spec;
  spec.limits = options_.worker_limits;
  spec.keeps_stdin = options_.stdin_for.all || options_.stdin_for.local_rank >= 0;
  spec.argv = command_for_rank(options_.command, 0);
  spec.environment = worker_environment(facts, worker_context(0), environment_);
  for (std::string& variable : imports_.variables_of_server()) {
    spec.environment.push_back(std::move(variable));
  }
  return spec;
}

WorkerSpec Agent::worker_spec(int local_rank, bool has_link) {
  const Place& worker = places_.at(local_rank);
  WorkerContext context = worker_context(local_rank);
  context.error_file = logs_.error_file(worker.restart_count, local_rank);
  if (local_rank == 0) {
    std::ranges::move(imports_.variables_of_worker(), std::back_inserter(context.extra));
  }
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
  spec.keeps_stdin = options_.stdin_for.has(local_rank);
  context.extra.emplace_back(spec.keeps_stdin ? "DDPRUN_STDIN=1" : "DDPRUN_STDIN=0");
  const auto place = static_cast<std::size_t>(local_rank);
  const auto& processors = options_.placement.processors;
  if (place < processors.size()) spec.processors = processors[place];
  spec.argv = command_for_rank(options_.command, local_rank);
  spec.environment = worker_environment(worker.facts, context, environment_);
  return spec;
}

// A static command line's workers find the store where their node found the endpoint.
void Agent::place_store(const rendezvous::Seat& seat, RankFacts& facts) const {
  facts.master_addr = seat.master_address;
  facts.master_port = seat.master_port;
  if (store_forward_ != 0) {
    facts.meeting_place = seat.master_address + " " + std::to_string(seat.master_port);
    facts.master_addr = "127.0.0.1";
    facts.master_port = store_forward_;
    return;
  }
  // A router need not lead back to where a connection comes from.
  if (seat.group_rank == 0 && options_.store_listen_host && store_ && !seat.store_at_endpoint) {
    facts.meeting_place = seat.master_address + " " + std::to_string(seat.master_port);
    facts.master_addr =
        options_.store_listen_host->empty() ? "127.0.0.1" : *options_.store_listen_host;
    return;
  }
  if (!seat.store_at_endpoint || options_.store_place.port == 0) return;
  facts.meeting_place = seat.master_address + " " + std::to_string(seat.master_port);
  facts.master_addr = options_.store_place.address;
  facts.master_port = options_.store_place.port;
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
  place_store(seat, facts);
  facts.restart_count = seat.restart_count;
  facts.max_restarts = options_.offer.config.max_restarts;
  facts.run_id = options_.run_id;
  if (seat.data) {
    facts.data_interface = seat.data->interface;
    facts.data_interfaces = seat.data->interfaces;
  } else {
    facts.data_interface = gloo_interface_;
  }
  return facts;
}

// While workers are being stopped: which are waited for, and how long.
void Agent::show_stopping() {
  const std::map<int, int> pids = processes_.pids();
  const auto ends = supervisor_.grace_ends();
  if (!ends || !seat_ || pids.empty() || ending_ || !options_.reports_for_run) {
    if (std::exchange(shows_stopping_, false)) waiting_.done();
    return;
  }
  std::vector<int> ranks;
  for (const auto& [local_rank, pid] : pids) {
    if (rank_of(local_rank) >= 0) ranks.push_back(rank_of(local_rank));
  }
  const bool interrupted = waiting_.on_terminal() && supervisor_.signalled() == SIGINT;
  const std::string names = ranks.empty()
                                ? number_of(static_cast<int>(pids.size()), "worker")
                                : (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
  waiting_.show(
      "waiting for " + names + " to end" + (interrupted ? " (Ctrl-C again kills them)" : ""),
      *ends - std::chrono::steady_clock::now());
  shows_stopping_ = true;
}

// The part of Agent for workers that keep their process: what they send on their links, and how
// they leave a round and take the next seat.

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kEndAfterLink = std::chrono::seconds(1);

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += (text.empty() ? "" : "; ") + piece;
  return text;
}

}  // namespace

void Agent::listen_to_workers() {
  links_.on_ready = [this](int local_rank, int min_world) { worker_ready(local_rank, min_world); };
  links_.on_left = [this](int local_rank, int round, std::int64_t step) {
    worker_left(local_rank, round, step);
  };
  links_.on_resumed = [this](int local_rank, const worker_link::Resumed& resumed) {
    worker_resumed(local_rank, resumed);
  };
  links_.on_lost = [this](int local_rank, const std::string& why) { link_lost(local_rank, why); };
}

// The descriptor for a worker's link; none, if it is to be a plain one.
UniqueFd Agent::open_link(int local_rank) {
  auto end = links_.open(local_rank);
  if (end) return std::move(*end);
  log::debug(to_string(end.error()));
  return {};
}

void Agent::worker_ready(int local_rank, int min_world) {
  Place& place = places_.at(local_rank);
  const bool news = !std::exchange(place.ready, true);
  if (place.seated) send_seat(local_rank);
  if (!news) return;
  processes_.end_family_with(local_rank);
  dispatch(WorkerReady{local_rank, min_world});
}

void Agent::worker_left(int local_rank, int round, std::int64_t step) {
  const Place& place = places_.at(local_rank);
  if (!place.ready || !place.seated || !seat_ || seat_->round != round) return;
  progress_.left(local_rank);
  ledger_.left(local_rank, Clock::now());
  dispatch(WorkerLeft{local_rank, round, step});
}

// One line for all of this node, once the last of them continues.
void Agent::worker_resumed(int local_rank, const worker_link::Resumed& resumed) {
  if (seat_ && resumed.round == seat_->round) {
    progress_.read_counts();
    ledger_.resumed(local_rank, resumed.repeated, Clock::now(), resumed.step);
    if (const std::int64_t lost = std::exchange(lost_steps_, 0); lost > 0) {
      ledger_.state_lost(lost, resumed.step);
    }
  }
  dispatch(WorkerResumed{local_rank, resumed.round, resumed.step});
  if (!change_ || !seat_ || resumed.round != seat_->round) return;
  const auto line = change_->resumed(local_rank, resumed, seat_->world_size);
  if (!line) return;
  const bool is_loss = change_->loses_steps();
  change_.reset();
  if (!options_.reports_for_run) return;
  is_loss ? log::warning(*line) : log::info(*line);
}

// A program that ends may close its link before: its end explains more.
void Agent::link_lost(int local_rank, const std::string& why) {
  if (!why.empty()) return mark_plain(local_rank, why);
  Place& place = places_.at(local_rank);
  if (!place.ready) return;  // A plain program that closes what it does not know.
  place.ending = std::make_unique<boost::asio::steady_timer>(loop_, kEndAfterLink);
  place.ending->async_wait([this, local_rank](const boost::system::error_code& ec) {
    if (!ec) mark_plain(local_rank, "it has closed its link");
  });
}

void Agent::mark_plain(int local_rank, const std::string& why) {
  const bool was_ready = std::exchange(places_.at(local_rank).ready, false);
  log::warning(name_of(local_rank) + " can no longer change its seat: " + why);
  if (was_ready) dispatch(WorkerPlain{local_rank});
}

std::string Agent::name_of(int local_rank) const {
  const int rank = rank_of(local_rank);
  const std::string place = "local rank " + std::to_string(local_rank);
  return rank < 0 ? place + ", which has no rank yet,"
                  : "rank " + std::to_string(rank) + " (" + place + ")";
}

int Agent::rank_of(int local_rank) const {
  const auto found = places_.find(local_rank);
  return found != places_.end() && found->second.seated ? found->second.facts.rank : -1;
}

int Agent::restart_count_of(int local_rank) const {
  const auto found = places_.find(local_rank);
  return found == places_.end() ? 0 : found->second.restart_count;
}

void Agent::send_seat(int local_rank) {
  DDPRUN_ASSERT(seat_);
  const RankFacts& facts = places_.at(local_rank).facts;
  const bool sees_one_gpu = options_.virtual_local_rank || options_.placement.shared_gpus > 0 ||
                            !options_.placement.devices.empty();
  links_.send(
      local_rank,
      worker_link::Seated{.round = seat_->round,
                          .restart_count = seat_->restart_count,
                          .rank = facts.rank,
                          .world_size = facts.world_size,
                          .local_rank = sees_one_gpu ? 0 : local_rank,  // As in its environment.
                          .local_world_size = facts.local_world_size,
                          .group_rank = facts.group_rank,
                          .group_world_size = facts.group_world_size,
                          .master_address = facts.master_addr,
                          .master_port = facts.master_port,
                          .skip = joined(seat_->skip),
                          .lost_work = seat_->lost_work});
}

void Agent::act(const SeatWorkers& order) {
  take_seat(order.seat);
  if (awaiting_output_.empty()) begin_watches();
  stop_began_ = false;
  change_.emplace(order.local_ranks, seat_->lost_steps);
  const int workers = static_cast<int>(order.local_ranks.size());
  for (auto& [local_rank, place] : places_) place.seated = false;
  int position = 0;
  for (const int local_rank : order.local_ranks) {
    Place& place = places_.at(local_rank);
    DDPRUN_ASSERT(place.ready);
    place.facts = rank_facts(*seat_, local_rank, position++, workers);
    place.seated = true;
    stop_states_.erase(local_rank);
    progress_.seated(local_rank, place.facts.rank);
    ledger_.seated(local_rank, place.facts.rank, Clock::now());
    output_.seated(local_rank, place.facts.rank);
    send_seat(local_rank);
    if (place.ending) processes_.signal_worker(local_rank, SIGKILL);  // It cannot be notified.
  }
  note_reserve();
}

void Agent::act(const FenceWorkers& fence) {
  for (const auto& [local_rank, place] : places_) {
    if (!place.seated) continue;
    links_.send(local_rank, worker_link::Fence{fence.round, fence.lost_rank, fence.why});
  }
}

void Agent::act(const AnnounceChange& change) {
  for (const auto& [local_rank, place] : places_) {
    if (place.seated) links_.send(local_rank, worker_link::Change{change.round, change.why});
  }
}

void Agent::act(const KillWorkers& kill) {
  const std::map<int, int> pids = processes_.pids();
  for (const int local_rank : kill.local_ranks) {
    const auto pid = pids.find(local_rank);
    if (pid == pids.end()) continue;
    StopState& worker = stop_states_[local_rank];
    const char state = read_proc_stat(pid->second).state;
    worker.killed = true;
    worker.halted = rank_of(local_rank) < 0 ? "it could no longer be seated"
                                            : "it did not leave the round when ordered to";
    if (is_halted(state)) worker.halted += "; " + halted_text(state);
    processes_.signal_worker(local_rank, SIGKILL);
  }
}

// The successor finds its predecessor's ranks in its environment: it has none of its own before it
// is seated.
void Agent::act(const SpawnWorker& spawn) {
  output_.drain(spawn.local_rank);
  complete_death(spawn.local_rank);
  DDPRUN_ASSERT(!awaiting_output_.contains(spawn.local_rank));
  if (processes_.pids().empty()) {  // A node's first ones, or all that it had are gone.
    stop_began_ = false;
    if (awaiting_output_.empty()) begin_watches();
  }
  add_place(spawn.local_rank);
  Place& place = places_.at(spawn.local_rank);
  place.facts.restart_count = place.restart_count = spawn.restart_count;
  place.seated = place.ready = false;
  DDPRUN_ASSERT(!place.ending);
  stop_states_.erase(spawn.local_rank);
  held_since_.reset();
  const TimePoint ordered = Clock::now();
  auto ends = open_worker(spawn.local_rank);
  Result<int> pid = ends ? Result<int>(0) : Result<int>(ends.error());
  if (ends) {
    const bool has_link = static_cast<bool>(ends->link_end);
    processes_.spawn_soon(worker_spec(spawn.local_rank, has_link), std::move(*ends));
    pid = processes_.finish_spawns().front();
  }
  if (pid) ledger_.replaced(spawn.local_rank, Clock::now(), start_of(*pid, ordered));
  note_reserve();
  if (pid) return progress_.started(spawn.local_rank, /*rank=*/-1, *pid);
  forget_worker(spawn.local_rank);
  boost::asio::post(loop_, [this, death = death_at_start(spawn.local_rank, pid.error())] {
    if (!ending_) dispatch(WorkerEnded{death});
  });
}

}  // namespace ddprun::agent
