#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/exit_status.h"

namespace ddprun::sim {
namespace {

constexpr Milliseconds kGrace{3000};       // From SIGTERM to SIGKILL.
constexpr Milliseconds kFence{20'000};     // From the link's end to SIGKILL, in elastic runs.
constexpr Milliseconds kFenceSlack{1000};  // For that to happen.

}  // namespace

using namespace std::chrono_literals;
using agent::Supervisor;
using rendezvous::Seat;

Cluster::Cluster(const ClusterOptions& options) : options_(options), random_(options.seed) {
  start_daemon();
  for (int i = 0; i < options_.hosts; ++i) boot("h" + std::to_string(i));
  for (int i = 0; options_.relays && i < options_.hosts; ++i) dial_later("h" + std::to_string(i));
}

void Cluster::run_for(Milliseconds duration) {
  const TimePoint end = now_ + duration;
  while (!timers_.empty() && timers_.top().when <= end && broken_.empty()) {
    const Timer timer = timers_.top();
    timers_.pop();
    now_ = timer.when;
    timer.what();
  }
  now_ = end;
}

bool Cluster::run_until_over(Milliseconds limit) {
  const TimePoint end = now_ + limit;
  while (!over() && now_ < end && broken_.empty()) run_for(100ms);
  return over();
}

bool Cluster::over() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& h) { return !h.second.agent; });
}

void Cluster::after(Milliseconds delay, std::function<void()> what) {
  timers_.push(Timer{now_ + delay, sequence_++, std::move(what)});
}

Milliseconds Cluster::latency() {
  return Milliseconds(chance(95) ? 1 + random_() % 5 : random_() % 200);
}

// DDPRUN_SIM_TRACE=1 with DDPRUN_SIM_SEED prints what happens, in milliseconds since the beginning.
void Cluster::trace(const std::string& text) const {
  static const bool on = std::getenv("DDPRUN_SIM_TRACE") != nullptr;
  if (!on) return;
  const auto since = now_.time_since_epoch() - std::chrono::hours(1);
  std::printf("%8lld  %s\n",
              static_cast<long long>(std::chrono::duration_cast<Milliseconds>(since).count()),
              text.c_str());
}

void Cluster::check(bool holds, const std::string& what) {
  if (!holds) broken_.push_back(what);
}

const rendezvous::Run* Cluster::run() const {
  if (!daemon_ || daemon_->coordinator().runs().empty()) return nullptr;
  return &daemon_->coordinator().runs().begin()->second;
}

// ---- the agents' side ----

rendezvous::NodeOffer Cluster::offer(const std::string& host) const {
  rendezvous::NodeOffer offer;
  offer.host = host;
  offer.address = "10.0.0." + host.substr(1);
  offer.store_port = 1000 + static_cast<int>(sequence_ % 50'000);
  offer.local_world_size = options_.local_world_size;
  offer.hosts_endpoint = host == "h0";
  offer.config = options_.config;
  return offer;
}

void Cluster::boot(const std::string& name) {
  Host& host = hosts_[name];
  if (host.agent || run_ended_) return;  // What joins after the end begins another run.
  host.life += 1;
  host.node = name + "." + std::to_string(host.life);
  agent::SupervisorOptions options;
  options.host = name;
  options.local_world_size = options_.local_world_size;
  options.spares = options_.spares;
  options.grace = kGrace;
  options.fence = kFence;
  options.preempt_signals = {SIGUSR1};
  options.ready_limit = options_.config.join_timeout;
  options.fence_always = options_.config.nnodes_min < options_.config.nnodes_max;
  host.agent = std::make_unique<Supervisor>(options, now_);
  host.workers.assign(static_cast<std::size_t>(options_.local_world_size + options_.spares),
                      Worker{});
  host.workers_round = -1;
  host.down_since.reset();
  host.unready_since.reset();
  host.interrupted = host.preempted = false;
  host.connecting = false;
  connect(name);
  beat(name, host.life);
  arm_agent_tick(name);
}

void Cluster::dispatch(const std::string& name, const agent::Event& event) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  const int life = host.life;
  if (std::holds_alternative<agent::LinkUp>(event)) host.down_since.reset();
  if (std::holds_alternative<agent::LinkDown>(event) && !host.down_since) host.down_since = now_;
  for (const agent::Action& action : host.agent->step(event, now_)) {
    trace(host.node + " does " + to_string(action));
    carry_out(name, action);
    if (!host.agent || host.life != life) return;
  }
  host.agent->check_invariants();
  arm_agent_tick(name);
}

void Cluster::arm_agent_tick(const std::string& name) {
  const Host& host = hosts_.at(name);
  const auto due = host.agent->deadline();
  if (!due) return;
  const auto delay = std::chrono::duration_cast<Milliseconds>(std::max(*due, now_) - now_) + 1ms;
  after(delay, [this, name, life = host.life, due = *due] {
    when_awake(name, [this, name, life, due] {
      Host& h = hosts_.at(name);
      if (h.agent && h.life == life && h.agent->deadline() == due) dispatch(name, Tick{});
    });
  });
}

void Cluster::carry_out(const std::string& name, const agent::Action& action) {
  Host& host = hosts_.at(name);
  if (const auto* join = std::get_if<agent::SendJoin>(&action)) {
    rendezvous::Join message{offer(name),   join->after_round, join->living,
                             join->serial,  join->beginning,   options_.prepares,
                             join->holders, join->kept_steps,  join->min_ranks};
    message.offer.local_world_size = join->workers;
    send_up(name, message);
  } else if (const auto* send = std::get_if<agent::SendMessage>(&action)) {
    send_up(name, send->message);
  } else if (const auto* start = std::get_if<agent::StartWorkers>(&action)) {
    start_workers(name, start->seat);
  } else if (const auto* spawn = std::get_if<agent::SpawnWorker>(&action)) {
    spawn_worker(name, *spawn);
  } else if (const auto* seat = std::get_if<agent::SeatWorkers>(&action)) {
    seat_workers(name, *seat);
  } else if (const auto* fence = std::get_if<agent::FenceWorkers>(&action)) {
    fence_workers(name, fence->round);
  } else if (const auto* change = std::get_if<agent::AnnounceChange>(&action)) {
    announce_change(change->round);
  } else if (const auto* kill = std::get_if<agent::KillWorkers>(&action)) {
    kill_workers(name, kill->local_ranks);
  } else if (const auto* signal = std::get_if<agent::SignalWorkers>(&action)) {
    signal_workers(name, signal->signal);
  } else if (std::holds_alternative<agent::CleanUp>(action)) {
    for (Worker& worker : host.workers) {
      check(!worker.alive, name + " cleans up under a live worker");
      worker.done = false;  // If others go on, it is started again with them.
    }
  } else if (const auto* exit = std::get_if<agent::Exit>(&action)) {
    if (exit->verdict) exit_statuses_.insert(exit->status);
    drop_by_agent(name, "");
    for (const Worker& worker : host.workers) check(!worker.alive, name + " leaves an orphan");
    hosts_.at(name).agent.reset();
    hosts_.at(name).exit_code = exit->status;
    check(!host.preempted || exit->status == kExitPreempted || exit->status == kExitOk,
          name + " was pre-empted and ends with " + std::to_string(exit->status));
    if (options_.hosted && name == "h0" && exit->status == kExitPreempted) desert();
  }
}

// One rank, one process: no rank of a round is ever started twice, and all agree on the round's
// terms.
void Cluster::check_round(const std::string& name, const Seat& seat) {
  const auto [it, is_new] = rounds_.try_emplace(seat.round);
  RoundRecord& record = it->second;
  if (is_new) {
    record.restart_count = seat.restart_count;
    record.world_size = seat.world_size;
  }
  check(record.restart_count == seat.restart_count, "restart counts differ in a round");
  check(record.world_size == seat.world_size, "world sizes differ in a round");
  check(seat.restart_count <= options_.config.max_restarts, "more restarts than allowed");
  check(seat.restart_count <= failures_, "a restart was counted though no worker had failed first");
  check(seat.group_world_size <= options_.config.nnodes_max, "more nodes than allowed");
  check(seat.group_world_size >= options_.config.nnodes_min, "fewer nodes than allowed");
  check(seat.workers >= 1 && seat.workers <= options_.local_world_size, "seats without places");
  for (int i = 0; i < seat.workers; ++i) {
    const bool fresh =
        record.owner_of_rank.emplace(seat.base_rank + i, hosts_.at(name).node).second;
    check(fresh, "rank " + std::to_string(seat.base_rank + i) + " of round " +
                     std::to_string(seat.round) + " was started twice");
    check(seat.base_rank + i < seat.world_size, "a rank beyond the world");
  }
  check_others_left(seat);
}

// Only a node that the daemon has given up may still have workers in an earlier round.
void Cluster::check_others_left(const Seat& seat) {
  for (const auto& [other, host] : hosts_) {
    const bool busy = std::any_of(host.workers.begin(), host.workers.end(), [&](const Worker& w) {
      return w.alive && w.round >= 0 && w.round < seat.round && !w.left;
    });
    if (!busy || !run()) continue;
    const bool may_shrink = options_.config.nnodes_min < options_.config.nnodes_max;
    check(!may_shrink || stands(host) || !host.down_since ||
              now_ - std::max(*host.down_since, host.stands_until) < kFence + kFenceSlack,
          other + " has lost the daemon and goes on beyond its fence");
    check(!run()->has_node(host.node), other + " still has workers of round " +
                                           std::to_string(host.workers_round) + " as round " +
                                           std::to_string(seat.round) + " starts");
  }
}

void Cluster::start_workers(const std::string& name, const Seat& seat) {
  check_may_start(name, seat);
  Host& host = hosts_.at(name);
  check(seat.workers == options_.local_world_size, name + " starts more or less than it has seats");
  for (std::size_t i = 0; i < host.workers.size(); ++i) {
    check(!host.workers[i].alive, name + " starts over a live worker");
    if (i >= static_cast<std::size_t>(seat.workers)) continue;  // For a spare.
    host.workers[i] =
        Worker{.alive = true, .deaf = chance(3), .process = ++processes_, .round = seat.round};
    ++started_;
    if (workers_finish_ && !options_.elastic) finish_later(name, i);
    if (elastic(name)) get_ready_later(name, i);
  }
  if (options_.elastic) resume_later(seat.round);
}

void Cluster::check_may_start(const std::string& name, const Seat& seat) {
  check_round(name, seat);
  Host& host = hosts_.at(name);
  check(!dismissed_.contains(host.node), name + " has been dismissed and starts workers");
  const auto drained = drained_.find(host.node);
  check(drained == drained_.end() || seat.round <= drained->second,
        name + " was drained and gets a seat");
  host.workers_round = seat.round;
}

void Cluster::finish_later(const std::string& name, std::size_t local_rank) {
  const Host& host = hosts_.at(name);
  after(Milliseconds(200 + random_() % 2000),
        [this, name, local_rank, life = host.life, process = host.workers[local_rank].process] {
          if (!same(name, life, local_rank, process)) return;
          const Worker& worker = hosts_.at(name).workers[local_rank];
          if (worker.round >= 0 && !worker.left) return end_worker(name, local_rank, 0, 0);
          if (worker.alive) finish_later(name, local_rank);  // It waits for its seat.
        });
}

void Cluster::end_worker(const std::string& name, std::size_t local_rank, int exit_code,
                         int signal) {
  Host& host = hosts_.at(name);
  Worker& worker = host.workers[local_rank];
  if (!host.agent || !worker.alive) return;
  worker.alive = false;
  worker.done = exit_code == 0 && signal == 0 && worker.round >= 0;
  if (worker.resumed >= 0) {  // Its agent reads this before, if it has not yet.
    const agent::WorkerResumed resumed{static_cast<int>(local_rank), worker.resumed};
    when_awake(name, [this, name, resumed, life = host.life] {
      if (hosts_.at(name).life == life) dispatch(name, resumed);
    });
  }
  WorkerDeath death;
  death.local_rank = static_cast<int>(local_rank);
  // Unique is enough; hosts are "h0", "h1".
  const int place = std::stoi(name.substr(1)) * 100 + static_cast<int>(local_rank);
  death.rank = worker.round < 0 ? -1 : worker.round * 1000 + place;
  death.pid = static_cast<int>(worker.process);
  death.host = name;
  death.exit_code = exit_code;
  death.signal = signal;
  death.stopped_by_us = signal != 0 && (elastic(name) ? worker.signalled : !host.agent->running());
  const bool output_follows = exit_code != 0 && chance(30);
  const agent::WorkerEnded ended{death, output_follows};
  when_awake(name, [this, name, ended, life = host.life] {
    if (hosts_.at(name).life != life) return;
    dispatch(name, ended);
    if (ended.output_follows) {
      after(10ms, [this, name, words = agent::LastOutput{ended.death}, life] {
        when_awake(name, [this, name, words, life] {
          if (hosts_.at(name).life == life) dispatch(name, words);
        });
      });
    }
  });
}

void Cluster::signal_workers(const std::string& name, int signal) {
  Host& host = hosts_.at(name);
  for (std::size_t i = 0; i < host.workers.size(); ++i) {
    if (!host.workers[i].alive || (host.workers[i].deaf && signal != SIGKILL)) continue;
    host.workers[i].signalled = true;
    after(Milliseconds(random_() % 20),
          [this, name, i, signal, life = host.life, process = host.workers[i].process] {
            if (same(name, life, i, process)) end_worker(name, i, 0, signal);
          });
  }
  std::vector<std::uint64_t> processes;
  for (const Worker& worker : host.workers) processes.push_back(worker.process);
  after(kGrace + 200ms, [this, name, life = host.life, processes] {
    const Host& h = hosts_.at(name);
    if (h.life != life || !h.agent) return;
    if (now_ < h.stands_until + 200ms) return;  // It could not do it in time.
    for (std::size_t i = 0; i < processes.size(); ++i) {
      const Worker& worker = h.workers[i];
      check(!worker.alive || worker.process != processes[i], name + " lets deaf workers live");
    }
  });
}

// ---- the network ----

void Cluster::connect(const std::string& name) {
  Host& host = hosts_.at(name);
  if (host.connecting || !host.agent) return;
  host.connecting = true;
  after(latency(host) + 10ms, [this, name, life = host.life] {
    when_awake(name, [this, name, life] { connected(name, life); });
  });
}

void Cluster::connected(const std::string& name, int life) {
  Host& host = hosts_.at(name);
  if (!host.agent || host.life != life) return;
  host.connecting = false;
  // It would begin another run, since it was in no round of this one.
  if (run_ended_ && host.agent->round() == -1 && host.workers_round < 0) return crash_agent(name);
  if (host.cut() || !daemon_) {
    after(100ms, [this, name, life] {
      if (hosts_.at(name).life == life) connect(name);
    });
    return;
  }
  host.link = link_next_++;
  host.last_received = now_;
  Link& link = links_[host.link];
  link.host = name;
  link.life = life;
  link.answered = daemon_now();
  host.greeted = false;
  send_up(name, rendezvous::Hello{rendezvous::kProtocolVersion, "job", host.node,
                                  /*release=*/"", options_.relays});
}

void Cluster::send_up(const std::string& name, const rendezvous::AgentMessage& message) {
  const LinkId link = hosts_.at(name).link;
  if (!links_.contains(link)) return;
  count_message(name);
  put_up(link, rendezvous::encode(message));
}

void Cluster::put_up(LinkId id, std::optional<std::string> what) {
  Link& link = links_.at(id);
  link.up.push_back(std::move(what));
  link.up_ready = std::max(link.up_ready, now_ + latency(hosts_.at(link.host)));
  after(std::chrono::duration_cast<Milliseconds>(link.up_ready - now_),
        [this, id] { pump_up(id); });
}

void Cluster::put_down(LinkId id, std::optional<std::string> what) {
  Link& link = links_.at(id);
  link.down.push_back(std::move(what));
  link.down_ready = std::max(link.down_ready, now_ + latency(hosts_.at(link.host)));
  after(std::chrono::duration_cast<Milliseconds>(link.down_ready - now_),
        [this, id] { pump_down(id); });
  will_acknowledge(id);
}

// Two machines that answer each other's answers would go on for ever, and as fast as they can. What
// has waited for a cut cable or for a daemon that stood still arrives together, but only once.
void Cluster::count_message(const std::string& name) {
  if (now_ - messages_since_ > 1s) {
    std::erase_if(busy_seconds_, [&](const auto& busy) { return messages_[busy.first] < 60; });
    for (const auto& [host, count] : messages_) busy_seconds_[host] += count < 60 ? 0 : 1;
    messages_.clear();
    messages_since_ = now_;
  }
  ++messages_[name];
  check(busy_seconds_[name] < 4, name + " and the daemon talk without end");
}

// One message of the queue has had its time; the first in line is the one that arrives.
void Cluster::pump_up(LinkId id) {
  const auto it = links_.find(id);
  if (it == links_.end() || it->second.up.empty()) return;
  if (hosts_.at(it->second.host).cut_up) return after(50ms, [this, id] { pump_up(id); });
  if (daemon_stands()) {  // It reads one link after the other when it goes on.
    const auto left = std::chrono::duration_cast<Milliseconds>(daemon_stands_until_ - now_);
    return after(left + Milliseconds(1 + random_() % 50), [this, id] { pump_up(id); });
  }
  const std::optional<std::string> body = std::move(it->second.up.front());
  it->second.up.pop_front();
  if (!daemon_ || !it->second.daemon_side) return;
  if (!body) it->second.daemon_side = false;
  if (!body || body->find("heartbeat\"") == std::string::npos)
    trace("daemon hears " + it->second.host + " " + body.value_or("end").substr(0, 60));
  daemon_takes(id, body);
  if (body && chance(1)) repeat_up(id, *body);
}

// No network repeats what it has delivered, but an agent does, on a link that may be another one.
void Cluster::repeat_up(LinkId id, const std::string& body) {
  const bool last = body.find("\"away\"") != std::string::npos;
  if (!links_.contains(id) || last || body.find("\"hello\"") != std::string::npos) return;
  auto& up = links_.at(id).up;
  if (std::find(up.begin(), up.end(), std::nullopt) == up.end()) put_up(id, body);
}

void Cluster::pump_down(LinkId id) {
  const auto it = links_.find(id);
  if (it == links_.end() || it->second.down.empty()) return;
  const std::string name = it->second.host;
  Host& host = hosts_.at(name);
  if (host.cut_down) return after(50ms, [this, id] { pump_down(id); });
  if (stands(host)) return when_awake(name, [this, id] { pump_down(id); });
  const std::optional<std::string> body = std::move(it->second.down.front());
  it->second.down.pop_front();
  if (!it->second.agent_side || !host.agent || host.life != it->second.life) return;
  if (!body) return drop_by_agent(name, "the daemon closed the connection");
  auto message = rendezvous::decode_daemon_message(*body);
  check(message.has_value(), "the daemon sent what its agents cannot read: " + *body);
  if (!message) return;
  if (std::holds_alternative<rendezvous::Dismiss>(*message)) dismissed_.insert(host.node);
  const bool order = std::holds_alternative<rendezvous::Assign>(*message) ||
                     std::holds_alternative<rendezvous::StopRound>(*message) ||
                     std::holds_alternative<rendezvous::EndRun>(*message);
  if (order && std::exchange(host.flap_on_order, false)) return break_link(name, chance(50));
  host.last_received = now_;
  if (!std::exchange(host.greeted, true)) dispatch(name, agent::LinkUp{});
  if (const auto* call = std::get_if<rendezvous::Relay>(&*message)) meet_later(name, *call);
  dispatch(name, agent::Received{*message});
}

void Cluster::beat(const std::string& name, int life) {
  Host& host = hosts_.at(name);
  if (!host.agent || host.life != life) return;
  check_beginners(name);
  if (stands(host)) return when_awake(name, [this, name, life] { beat(name, life); });
  if (host.link != 0) {
    if (!patient(host)) {
      send_up(name, rendezvous::Away{});
      drop_by_agent(name, "silent");
    } else {
      send_up(name, rendezvous::Heartbeat{host.agent->round()});
    }
  }
  after(rendezvous::beat_interval(options_.config.heartbeat_timeout),
        [this, name, life] { beat(name, life); });
}

// As agent/node/remote_link is: with a daemon that stands still for up to a minute, unless another
// one may have taken over; with a lossy cable for twenty round trips; never without its own time.
bool Cluster::patient(const Host& host) const {
  const Duration silence = now_ - std::max(host.last_received, host.stands_until);
  if (silence <= 2 * options_.config.heartbeat_timeout) return true;
  const bool answers = daemon_ && links_.at(host.link).daemon_side && !host.cut();
  return answers && !options_.several_daemons && silence < 60s;
}

// The agent closes its end; the daemon learns of it unless the cable is cut.
void Cluster::drop_by_agent(const std::string& name, const std::string& why, bool daemon_sees) {
  Host& host = hosts_.at(name);
  const LinkId id = std::exchange(host.link, 0);
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second.agent_side = false;
  if (!host.cut_up && daemon_sees) put_up(id, std::nullopt);
  if (why.empty()) return;
  dispatch(name, agent::LinkDown{why});
  if (host.agent) connect(name);
}

void Cluster::break_link(const std::string& name, bool daemon_sees) {
  const LinkId id = hosts_.at(name).link;
  if (id == 0) return;
  links_.at(id).up.clear();
  links_.at(id).down.clear();
  links_.at(id).agent_side = false;
  if (daemon_sees) put_up(id, std::nullopt);
  when_awake(name, [this, name, id] {
    if (hosts_.at(name).link == id) drop_by_agent(name, "broken", /*daemon_sees=*/false);
  });
}

}  // namespace ddprun::sim
