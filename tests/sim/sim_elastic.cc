// Workers that can be seated anew: they become ready after a while, leave a round when they are
// fenced or at a boundary between steps, and are replaced while the others go on.

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

bool Cluster::elastic(const std::string& name) const {
  return options_.elastic && name != "h" + std::to_string(options_.plain_host);
}

int Cluster::world_size() const {
  if (!run() || run()->state() != rendezvous::Run::State::kRunning) return 0;
  return run()->status(daemon_now()).world_size;
}

std::set<int> Cluster::world_sizes() const {
  std::set<int> sizes;
  for (const auto& [round, record] : rounds_) sizes.insert(record.world_size);
  return sizes;
}

// Whether that process is still the one in its place, alive or not.
bool Cluster::same(const std::string& name, int life, std::size_t local_rank,
                   std::uint64_t process) {
  const Host& host = hosts_.at(name);
  return host.life == life && host.workers[local_rank].process == process;
}

// What a living worker sends on its link.
void Cluster::notify_agent(const std::string& name, std::size_t local_rank, Milliseconds delay,
                           const agent::Event& event) {
  const Host& host = hosts_.at(name);
  after(delay, [this, name, local_rank, event, life = host.life,
                process = host.workers[local_rank].process] {
    when_awake(name, [this, name, local_rank, event, life, process] {
      if (!same(name, life, local_rank, process)) return;
      if (hosts_.at(name).workers[local_rank].alive) dispatch(name, event);
    });
  });
}

// Whether it never gets ready for a seat. It follows from the process's name, so that the other
// events of a seed do not depend on it.
bool Cluster::hangs(const std::string& name, const Worker& worker) const {
  constexpr std::uint64_t kMixed = 0x9e3779b97f4a7c15;  // Of neighbours, nothing alike.
  const bool is_rare = ((worker.process + options_.seed) * kMixed >> 32) % 100 < 4;
  return worker.round < 0 && (!elastic(name) || (options_.hangs && is_rare));
}

// A program that does not know of seats, and has little to do.
void Cluster::end_plain_later(const std::string& name, std::size_t local_rank) {
  const Host& host = hosts_.at(name);
  after(3s, [this, name, local_rank, life = host.life, process = host.workers[local_rank].process] {
    if (same(name, life, local_rank, process)) end_worker(name, local_rank, 0, 0);
  });
}

// No node waits for ever for workers of its own, unseen by all others; nor for one of them.
void Cluster::check_beginners(const std::string& name) {
  constexpr Milliseconds kTimeToEnd{10'000};
  Host& host = hosts_.at(name);
  for (Worker& worker : host.workers) {
    const bool begins = worker.alive && !worker.ready && worker.round < 0 && !worker.signalled;
    if (!begins || stands(host))
      worker.begins_since.reset();
    else if (!worker.begins_since)
      worker.begins_since = now_;
    check(!worker.begins_since ||
              now_ - *worker.begins_since < options_.config.join_timeout + kTimeToEnd,
          name + " waits for a worker that never gets ready");
  }
  const bool any_ready = std::any_of(host.workers.begin(), host.workers.end(),
                                     [](const Worker& one) { return one.alive && one.ready; });
  const bool waits = host.agent->living() > 0 && host.agent->round() == -1 && !any_ready;
  if (!waits || stands(host)) return host.unready_since.reset();
  if (!host.unready_since) host.unready_since = now_;
  check(now_ - *host.unready_since < options_.config.join_timeout + kTimeToEnd,
        name + " waits for workers that never get ready");
}

// It imports, for a moment or for seconds; now and then it dies of that.
void Cluster::get_ready_later(const std::string& name, std::size_t local_rank) {
  const Host& host = hosts_.at(name);
  if (hangs(name, host.workers[local_rank])) {
    const bool ends = !elastic(name) && options_.seed / 6 % 2 == 1;
    return ends ? end_plain_later(name, local_rank) : void();
  }
  const Milliseconds delay(10 + random_() % (chance(80) ? 300 : 8000));
  const bool dies = !options_.quiet && host.workers[local_rank].round < 0 && chance(6);
  after(delay, [this, name, local_rank, dies, life = host.life,
                process = host.workers[local_rank].process] {
    if (!same(name, life, local_rank, process)) return;
    Worker& worker = hosts_.at(name).workers[local_rank];
    if (!worker.alive) return;
    if (dies) {
      ++failures_;
      return end_worker(name, local_rank, 7, 0);
    }
    worker.ready = true;
    worker.halted = !options_.quiet && chance(2);
    notify_agent(name, local_rank, 0ms, agent::WorkerReady{static_cast<int>(local_rank)});
    if (worker.round >= 0) resume_later(worker.round);
  });
}

void Cluster::spawn_worker(const std::string& name, const agent::SpawnWorker& spawn) {
  Host& host = hosts_.at(name);
  const auto i = static_cast<std::size_t>(spawn.local_rank);
  check(!host.workers.at(i).alive, name + " has two processes in one place");
  check(spawn.restart_count <= options_.config.max_restarts, "a replacement beyond the restarts");
  host.workers[i] = Worker{.alive = true, .deaf = chance(3), .process = ++processes_};
  ++spawned_;
  get_ready_later(name, i);
}

void Cluster::seat_workers(const std::string& name, const agent::SeatWorkers& seat) {
  check_may_start(name, seat.seat);
  Host& host = hosts_.at(name);
  check(std::ssize(seat.local_ranks) == seat.seat.workers, name + " leaves seats empty");
  check(std::is_sorted(seat.local_ranks.begin(), seat.local_ranks.end()), "ranks out of order");
  const auto is_new = [&](int i) { return host.workers.at(static_cast<std::size_t>(i)).round < 0; };
  const bool any_new = std::any_of(seat.local_ranks.begin(), seat.local_ranks.end(), is_new);
  for (int i = 0; any_new && i < static_cast<int>(host.workers.size()); ++i) {
    const Worker& worker = host.workers[static_cast<std::size_t>(i)];
    const bool served = worker.alive && worker.ready && !is_new(i) && !worker.signalled;
    const bool seated = std::binary_search(seat.local_ranks.begin(), seat.local_ranks.end(), i);
    check(!served || seated, name + " gives a survivor's seat to a new worker");
  }
  for (const int local_rank : seat.local_ranks) {
    Worker& worker = host.workers.at(static_cast<std::size_t>(local_rank));
    const std::string name_of_rank = name + "'s local rank " + std::to_string(local_rank);
    // One that died a moment ago may be seated: its agent stands still, or reads one thing after
    // the other.
    check(worker.ready, name_of_rank + " is seated and not ready");
    check(worker.round < seat.seat.round, name_of_rank + " is seated twice");
    check(worker.round == -1 || worker.left || !worker.alive,
          name_of_rank + " is seated out of a round");
    worker.round = seat.seat.round;
    ++reseated_;
    worker.left = worker.fenced = false;
  }
  resume_later(seat.seat.round);
}

void Cluster::leave_later(const std::string& name, std::size_t local_rank) {
  const Host& host = hosts_.at(name);
  const Worker& worker = host.workers[local_rank];
  after(Milliseconds(1 + random_() % 10), [this, name, local_rank, life = host.life,
                                           process = worker.process, round = worker.round] {
    if (!same(name, life, local_rank, process)) return;
    Worker& w = hosts_.at(name).workers[local_rank];
    if (!w.alive || w.round != round || std::exchange(w.left, true)) return;
    notify_agent(name, local_rank, 1ms, agent::WorkerLeft{static_cast<int>(local_rank), round});
  });
}

void Cluster::fence_workers(const std::string& name, int round) {
  Host& host = hosts_.at(name);
  for (std::size_t i = 0; i < host.workers.size(); ++i) {
    Worker& worker = host.workers[i];
    if (!worker.alive || worker.round != round) continue;
    worker.fenced = true;
    fenced_ += worker.left ? 0 : 1;
    if (!worker.halted) leave_later(name, i);
  }
}

// The first worker with news of a change notifies the others in their next step.
void Cluster::announce_change(int round) {
  const auto record = rounds_.find(round);
  if (record == rounds_.end() || std::exchange(record->second.changing, true)) return;
  const bool is_short = options_.quiet || chance(95);
  const Milliseconds step(1 + random_() % (is_short ? 400 : 20'000));
  after(step, [this, round] { reach_boundary(round); });
}

// All leave together, if all are there: a step without one of them does not end.
void Cluster::reach_boundary(int round) {
  const auto record = rounds_.find(round);
  if (record == rounds_.end()) return;  // That run is over; another one may have begun.
  if (there(round) < record->second.world_size) return;
  for (const auto& [name, host] : hosts_) {
    for (std::size_t i = 0; i < host.workers.size(); ++i) {
      const Worker& worker = host.workers[i];
      if (worker.alive && worker.round == round && !worker.halted) leave_later(name, i);
    }
  }
}

void Cluster::kill_workers(const std::string& name, const std::vector<int>& local_ranks) {
  Host& host = hosts_.at(name);
  for (const int local_rank : local_ranks) {
    const auto i = static_cast<std::size_t>(local_rank);
    Worker& worker = host.workers.at(i);
    if (worker.round < 0 && !worker.ready) ++failures_;  // It was not ready in time.
    worker.signalled = true;
    ++killed_;
    after(Milliseconds(random_() % 20),
          [this, name, i, life = host.life, process = host.workers[i].process] {
            if (same(name, life, i, process)) end_worker(name, i, 0, SIGKILL);
          });
  }
}

// Its link is gone, though it lives.
void Cluster::make_plain(const std::string& name) {
  const Host& host = hosts_.at(name);
  if (!host.agent) return;
  const std::size_t i = random_() % host.workers.size();
  if (!host.workers[i].alive || !host.workers[i].ready) return;
  hosts_.at(name).workers[i].halted = true;
  ++failures_;  // If it has no seat it is killed, and replaced.
  notify_agent(name, i, 1ms, agent::WorkerPlain{static_cast<int>(i)});
}

// One that waits for its seat, or is not even ready for one.
void Cluster::fail_unseated(const std::string& name) {
  const Host& host = hosts_.at(name);
  for (std::size_t i = 0; i < host.workers.size(); ++i) {
    const Worker& worker = host.workers[i];
    if (!worker.alive || (worker.round >= 0 && !worker.left)) continue;
    ++failures_;
    return end_worker(name, i, 7, 0);
  }
}

void Cluster::elastic_fault(const std::string& name) {
  switch (random_() % 9) {
    case 0:
    case 1:
    case 2: return fail_worker(name);
    case 3:
    case 4: return fail_unseated(name);
    case 5: return make_plain(name);
    case 6: return boot(name);
    case 8: return chance(40) ? preempt(name) : void();
    case 7: return fail_worker(name), fail_worker(hosts_.begin()->first);
  }
}

}  // namespace ddprun::sim
