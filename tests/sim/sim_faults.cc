// The faults.

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

void Cluster::crash_agent(const std::string& name) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  for (Worker& worker : host.workers)
    worker.alive = false;  // PDEATHSIG and the launcher see to it.
  const LinkId id = std::exchange(host.link, 0);
  if (id != 0) links_.at(id).agent_side = false;
  if (id != 0 && !host.cut_up) put_up(id, std::nullopt);
  host.agent.reset();
  host.stands_until = {};
  fail_victims(name);
}

// Workers that were in a collective with those of a host that is gone.
void Cluster::fail_victims(const std::string& gone) {
  const int round = hosts_.at(gone).workers_round;
  if (round < 0) return;  // Its workers waited for their first seats.
  const auto& workers = hosts_.at(gone).workers;
  const bool in_round = std::any_of(workers.begin(), workers.end(),
                                    [&](const Worker& w) { return w.round == round && !w.left; });
  if (!in_round) return;
  for (const auto& [name, host] : hosts_) {
    if (name == gone || host.workers_round != round || chance(50)) continue;
    after(latency(), [this, name = name, life = host.life, round] {
      const Host& h = hosts_.at(name);
      const Worker& worker = h.workers[0];
      if (h.life == life && worker.round == round && !worker.left) end_worker(name, 0, 97, 0);
    });
  }
}

void Cluster::power_off(const std::string& name) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  for (Worker& worker : host.workers) worker.alive = false;
  if (host.link != 0) links_.at(host.link).up.clear();
  if (host.link != 0) links_.at(host.link).agent_side = false;
  host.link = 0;
  host.agent.reset();
  host.stands_until = {};
  fail_victims(name);
}

void Cluster::cut_cable(const std::string& name) {
  hosts_.at(name).cut_up = hosts_.at(name).cut_down = true;
}
void Cluster::cut_one_way(const std::string& name, bool up) {
  (up ? hosts_.at(name).cut_up : hosts_.at(name).cut_down) = true;
}
void Cluster::mend_cable(const std::string& name) {
  hosts_.at(name).cut_up = hosts_.at(name).cut_down = hosts_.at(name).lossy = false;
}
void Cluster::flap_on_next_order(const std::string& name) { hosts_.at(name).flap_on_order = true; }

void Cluster::fail_worker(const std::string& name) {
  const std::size_t i = random_() % hosts_.at(name).workers.size();
  notice_failure(name, i);
  if (chance(50))
    end_worker(name, i, 7, 0);
  else
    end_worker(name, i, 0, SIGSEGV);
}

void Cluster::signal_agent(const std::string& name) {
  hosts_.at(name).interrupted = true;
  dispatch(name, agent::Signalled{SIGTERM});
}

void Cluster::preempt(const std::string& name) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  trace(host.node + " is pre-empted");
  when_awake(name, [this, name, life = host.life] {
    Host& h = hosts_.at(name);
    if (!h.agent || h.life != life) return;
    h.preempted = !h.interrupted;
    dispatch(name, agent::Signalled{SIGUSR1});
  });
}

void Cluster::preempt_all(Milliseconds within) {
  for (const auto& [name, host] : hosts_) {
    after(Milliseconds(random_() % static_cast<std::uint64_t>(within.count())),
          [this, name = name] { preempt(name); });
  }
}

void Cluster::preempt_all_processes(const std::string& name) {
  for (std::size_t i = 0; i < hosts_.at(name).workers.size(); ++i) {
    if (!hosts_.at(name).workers[i].alive) continue;
    notice_failure(name, i);
    end_worker(name, i, 0, SIGUSR1);
  }
  after(latency(), [this, name] { preempt(name); });
}

void Cluster::preempt_while_reconnecting(const std::string& name) {
  chance(50) ? kill_daemon(false) : break_link(name, chance(50));
  after(Milliseconds(random_() % 1500), [this, name] { preempt(name); });
}

void Cluster::preempt_at_random(std::mt19937_64& random) {
  const auto any = std::next(hosts_.begin(), static_cast<long>(random() % hosts_.size()))->first;
  const std::string victim = random() % 3 == 0 ? "h0" : any;
  switch (random() % 40) {
    case 0: return preempt_all(Milliseconds(50));
    case 1:
    case 2: return preempt_while_reconnecting(victim);
    case 3: return preempt_all_processes(victim);
    case 4:
    case 5:
    case 6: return preempt(victim);
  }
}

void Cluster::fault_at_random() {
  const auto victim =
      std::next(hosts_.begin(), static_cast<long>(random_() % hosts_.size()))->first;
  const Milliseconds a_while(50 + random_() % (chance(20) ? 60'000 : 5'000));
  if (options_.elastic && chance(30)) return elastic_fault(victim);
  switch (random_() % 25) {
    case 0: return crash_agent(victim);
    case 1: return power_off(victim);
    case 2:
    case 3: return boot(victim);
    case 4: return cut_cable(victim);
    case 5:
    case 6: return mend_cable(victim);
    case 7: return break_link(victim, chance(50));
    case 8: return flap_on_next_order(victim);
    case 9: return kill_daemon(chance(50));
    case 10: return kill_daemon_on_next_record();
    case 11:
    case 12: return fail_worker(victim);
    case 13:
      if (chance(10)) signal_agent(victim);
      return;
    case 14: return fill_disk();
    case 15:
    case 16: return free_disk();
    case 17: return cut_one_way(victim, chance(50));
    case 18: return stop_daemon(a_while);
    case 19:
      if (chance(30)) return drain(victim);
      return chance(30) ? resize(1 + static_cast<int>(random_() % 4)) : void();
    case 20:
      if (chance(80)) return;
      return chance(50) ? cancel() : shut_down_daemon();
    case 21:
    case 22: return stop_agent(victim, a_while);
    case 23: return stop_all(a_while);
    case 24: return spoil_cable(victim);
  }
}

void Cluster::mend_everything() {
  die_on_record_ = false;
  free_disk();
  start_daemon();
  for (auto& [name, host] : hosts_) {
    mend_cable(name);
    host.flap_on_order = false;
  }
}

std::string Cluster::describe() const {
  std::string text = run() ? run()->describe() + "\n" : "no run\n";
  for (const auto& [name, host] : hosts_) {
    text += host.node + (host.agent ? " " + host.agent->describe() : " down") +
            (host.cut() ? ", cut off" : "") + "\n";
  }
  for (const std::string& what : broken_) text += "BROKEN: " + what + "\n";
  return text;
}

}  // namespace ddprun::sim
