// How elastic workers take part in rounds: which have the state of the training, and which end
// when.

#include <algorithm>
#include <utility>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

// The workers that compute in that round.
int Cluster::there(int round) const {
  int all = 0;
  for (const auto& [name, host] : hosts_) {
    const bool has_ready = elastic(name);
    all += static_cast<int>(
        std::count_if(host.workers.begin(), host.workers.end(), [&](const Worker& worker) {
          return worker.alive && worker.round == round && !worker.fenced && !worker.left &&
                 !worker.returned && (worker.ready || !has_ready);
        }));
  }
  return all;
}

void Cluster::resume_later(int round) {
  after(Milliseconds(1 + random_() % 10), [this, round] { resume(round); });
}

// Workers without the state of the training receive it; if all lack it, they begin it.
void Cluster::resume(int round) {
  const auto record = rounds_.find(round);
  if (record == rounds_.end() || record->second.resumed) return;
  if (there(round) < record->second.world_size) return;
  record->second.resumed = true;
  int beginning = 0;
  for (const auto& [name, host] : hosts_) {
    for (const Worker& worker : host.workers) {
      if (worker.alive && worker.round == round) beginning = std::max(beginning, worker.beginning);
    }
  }
  if (beginning == 0) beginning = ++beginnings_;
  for (auto& [name, host] : hosts_) {
    for (std::size_t i = 0; i < host.workers.size(); ++i) {
      Worker& worker = host.workers[i];
      if (!worker.alive || worker.round != round) continue;
      worker.resumed = round;
      worker.beginning = beginning;
      notify_agent(name, i, 0ms, agent::WorkerResumed{static_cast<int>(i), round});
    }
  }
  if (workers_finish_) return_later(round);
}

void Cluster::return_later(int round) {
  after(Milliseconds(200 + random_() % 2000), [this, round] { return_workers(round); });
}

void Cluster::let_workers_finish() {
  workers_finish_ = true;
  if (options_.elastic) {
    for (const auto& [round, record] : rounds_) return_later(round);
    return;
  }
  for (const auto& [name, host] : hosts_) {
    for (std::size_t i = 0; i < host.workers.size(); ++i) finish_later(name, i);
  }
}

// All have made the last step, and end one after the other. Where one is missing, its round ends.
void Cluster::return_workers(int round) {
  const auto record = rounds_.find(round);
  if (record == rounds_.end() || !record->second.resumed) return;
  if (there(round) < record->second.world_size) return;
  for (auto& [name, host] : hosts_) {
    for (std::size_t i = 0; i < host.workers.size(); ++i) {
      Worker& worker = host.workers[i];
      if (!worker.alive || worker.round != round) continue;
      worker.returned = true;
      const Milliseconds delay(1 + random_() % (chance(70) ? 100 : 2000));
      const bool fails = chance(5);
      after(delay, [this, name = name, i, fails, life = host.life, process = worker.process] {
        if (!same(name, life, i, process)) return;
        if (fails) notice_failure(name, i);
        end_worker(name, i, fails ? 7 : 0, 0);
      });
    }
  }
}

// A run that has ended well did so in one piece: no worker trained again beside the work of those
// that had ended before.
void Cluster::check_one_beginning() {
  std::set<int> beginnings;
  for (const auto& [name, host] : hosts_) {
    if (!host.agent || !run()->has_node(host.node)) continue;
    for (const Worker& worker : host.workers) {
      if (worker.done) beginnings.insert(worker.beginning);
    }
  }
  check(beginnings.size() <= 1, "workers have ended whose trainings began apart");
}

}  // namespace ddprun::sim
