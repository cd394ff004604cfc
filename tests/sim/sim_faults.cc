// The simulated daemon's shell (disk and death) and the faults.

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

void Cluster::start_daemon() {
  if (daemon_) return;
  daemon_ = std::make_unique<rendezvous::Coordinator>();
  ++daemon_life_;
  const rendezvous::Journal journal = rendezvous::decode_journal(disk_);
  disk_.resize(journal.bytes_good);
  daemon_->replay(journal, now_);
  trace("the daemon is back: " + (run() ? run()->describe() : "nothing known"));
  disk_ += daemon_->take_records();
  arm_daemon_tick();
}

void Cluster::kill_daemon(bool torn_record) {
  if (!daemon_) return;
  if (torn_record && disk_.size() > 4) disk_ += disk_.substr(0, 1 + random_() % 40);
  daemon_.reset();
  trace("the daemon dies");
  for (auto& [id, link] : links_) {
    link.up.clear();
    link.down.clear();
    link.daemon_side = false;
    const Host& host = hosts_.at(link.host);
    if (host.cut || host.link != id) continue;
    after(latency(), [this, id = id, name = link.host] {
      if (hosts_.at(name).link == id) drop_by_agent(name, "the daemon closed the connection");
    });
  }
  after(Milliseconds(10 + random_() % 3000), [this] { start_daemon(); });
}

void Cluster::kill_daemon_on_next_record() { die_on_record_ = true; }

void Cluster::daemon_does(std::vector<rendezvous::LinkAction> actions) {
  const std::string records = daemon_->take_records();
  if (!records.empty() && std::exchange(die_on_record_, false)) {
    disk_ += records.substr(0, random_() % (records.size() + 1));
    return kill_daemon(false);
  }
  disk_ += records;
  for (const auto& [run_id, run] : daemon_->runs()) {
    run.check_invariants();
    run_ended_ = run_ended_ || run.state() == rendezvous::Run::State::kEnded;
  }
  for (rendezvous::LinkAction& action : actions) {
    if (auto* send = std::get_if<rendezvous::Send>(&action)) {
      const auto it = links_.find(send->link);
      if (it == links_.end() || !it->second.daemon_side) continue;
      it->second.down.push_back(std::move(send->body));
      after(latency(), [this, id = send->link] { pump_down(id); });
    } else {
      const LinkId id = std::get<rendezvous::Hangup>(action).link;
      const auto it = links_.find(id);
      if (it == links_.end()) continue;
      it->second.daemon_side = false;
      after(201ms, [this, id, name = it->second.host] {
        if (hosts_.at(name).link == id && !hosts_.at(name).cut) drop_by_agent(name, "hung up");
      });
    }
  }
  arm_daemon_tick();
}

void Cluster::arm_daemon_tick() {
  const auto due = daemon_->deadline();
  if (!due) return;
  const auto delay = std::chrono::duration_cast<Milliseconds>(std::max(*due, now_) - now_) + 1ms;
  after(delay, [this, life = daemon_life_, due = *due] {
    if (daemon_ && daemon_life_ == life && daemon_->deadline() == due) {
      daemon_does(daemon_->on_tick(now_));
    }
  });
}

void Cluster::crash_agent(const std::string& name) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  for (Worker& worker : host.workers)
    worker.alive = false;  // PDEATHSIG and the launcher see to it.
  const LinkId id = std::exchange(host.link, 0);
  if (id != 0 && !host.cut) after(latency(), [this, id] { drop_by_daemon(id); });
  host.agent.reset();
  fail_victims(name);
}

// Workers that were in a collective with those of a host that is gone.
void Cluster::fail_victims(const std::string& gone) {
  const int round = hosts_.at(gone).workers_round;
  for (const auto& [name, host] : hosts_) {
    if (name == gone || host.workers_round != round || chance(50)) continue;
    after(latency(), [this, name = name, life = host.life, round] {
      const Host& h = hosts_.at(name);
      if (h.life == life && h.workers_round == round) end_worker(name, 0, 97, 0);
    });
  }
}

void Cluster::power_off(const std::string& name) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  for (Worker& worker : host.workers) worker.alive = false;
  if (host.link != 0) links_.at(host.link).up.clear();
  host.link = 0;
  host.agent.reset();
  fail_victims(name);
}

void Cluster::cut_cable(const std::string& name) { hosts_.at(name).cut = true; }
void Cluster::mend_cable(const std::string& name) { hosts_.at(name).cut = false; }
void Cluster::flap_on_next_order(const std::string& name) { hosts_.at(name).flap_on_order = true; }

void Cluster::fail_worker(const std::string& name) {
  ++failures_;
  const std::size_t i = random_() % hosts_.at(name).workers.size();
  if (chance(50))
    end_worker(name, i, 7, 0);
  else
    end_worker(name, i, 0, SIGSEGV);
}

void Cluster::signal_agent(const std::string& name) { dispatch(name, agent::Signalled{SIGTERM}); }

void Cluster::fault_at_random() {
  const auto victim =
      std::next(hosts_.begin(), static_cast<long>(random_() % hosts_.size()))->first;
  switch (random_() % 14) {
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
  }
}

void Cluster::mend_everything() {
  die_on_record_ = false;
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
            (host.cut ? ", cut off" : "") + "\n";
  }
  for (const std::string& what : broken_) text += "BROKEN: " + what + "\n";
  return text;
}

}  // namespace ddprun::sim
