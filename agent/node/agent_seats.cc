// The part of Agent for workers that keep their process: what they say on their links, and how they
// leave a round and take the next seat.

#include <boost/asio/post.hpp>
#include <csignal>
#include <utility>

#include "agent/node/agent.h"
#include "agent/node/start_failure.h"
#include "agent/process/proc_file.h"
#include "common/assert.h"
#include "common/system/log.h"

namespace ddprun::agent {
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
  if (place.seated) tell_seat(local_rank);
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
    progress_.look_at_counts();
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
  if (!options_.speaks_for_run) return;
  is_loss ? log::warning(*line) : log::info(*line);
}

// A program that ends may close its link before: its end says more.
void Agent::link_lost(int local_rank, const std::string& why) {
  if (!why.empty()) return becomes_plain(local_rank, why);
  Place& place = places_.at(local_rank);
  if (!place.ready) return;  // A plain program that closes what it does not know.
  place.ending = std::make_unique<boost::asio::steady_timer>(loop_, kEndAfterLink);
  place.ending->async_wait([this, local_rank](const boost::system::error_code& ec) {
    if (!ec) becomes_plain(local_rank, "it has closed its link");
  });
}

void Agent::becomes_plain(int local_rank, const std::string& why) {
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

void Agent::tell_seat(int local_rank) {
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
                          .skip = joined(seat_->skip)});
}

void Agent::act(const SeatWorkers& order) {
  take_seat(order.seat);
  if (wordless_.empty()) begin_watches();
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
    at_stop_.erase(local_rank);
    progress_.seated(local_rank, place.facts.rank);
    ledger_.seated(local_rank, place.facts.rank, Clock::now());
    output_.seated(local_rank, place.facts.rank);
    tell_seat(local_rank);
    if (place.ending) processes_.signal_worker(local_rank, SIGKILL);  // It cannot be told.
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
    AtStop& worker = at_stop_[local_rank];
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
  DDPRUN_ASSERT(!wordless_.contains(spawn.local_rank));
  if (processes_.pids().empty()) {  // A node's first ones, or all that it had are gone.
    stop_began_ = false;
    if (wordless_.empty()) begin_watches();
  }
  add_place(spawn.local_rank);
  Place& place = places_.at(spawn.local_rank);
  place.facts.restart_count = place.restart_count = spawn.restart_count;
  place.seated = place.ready = false;
  DDPRUN_ASSERT(!place.ending);
  at_stop_.erase(spawn.local_rank);
  auto ends = open_worker(spawn.local_rank);
  Result<int> pid = ends ? Result<int>(0) : Result<int>(ends.error());
  if (ends) {
    const bool has_link = static_cast<bool>(ends->link_end);
    processes_.spawn_soon(worker_spec(spawn.local_rank, has_link), std::move(*ends));
    pid = processes_.finish_spawns().front();
  }
  if (pid) ledger_.replaced(spawn.local_rank, Clock::now());
  note_reserve();
  if (pid) return progress_.started(spawn.local_rank, /*rank=*/-1, *pid);
  forget_worker(spawn.local_rank);
  boost::asio::post(loop_, [this, death = death_at_start(spawn.local_rank, pid.error())] {
    if (!ending_) dispatch(WorkerEnded{death});
  });
}

}  // namespace ddprun::agent
