#pragma once
// Plays the agent and the daemon for workers that can be seated again: spawns them, each with a
// link (common/worker_link.h), gives seats in rounds with a store of their own, fences a round when
// one of its workers dies, spawns a replacement and lets it in by a planned change. One thread,
// no clock but a far deadline.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/system/descriptors.h"
#include "common/worker_link.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun::test {

struct ElasticHostOptions {
  std::string program;
  int slots = 4;
  int replacements = 0;  // Of workers that died; those beyond leave their slots empty.
  bool spread = false;   // The slots are on two hosts, as far as the workers can see.
  // More variables of the worker in a slot, by how many were there before.
  std::function<std::map<std::string, std::string>(int slot, int life)> environment;
};

class ElasticHost {
 public:
  explicit ElasticHost(ElasticHostOptions options);
  ~ElasticHost();  // Kills what is left.
  ElasticHost(const ElasticHost&) = delete;

  // Until no worker is left that has a seat. Returns why it gave up; nothing if all is well.
  std::string run();

  int rounds() const { return rounds_; }
  int planned() const { return planned_; }  // Rounds that ended with LeftRound of all, no fence.
  int deaths() const { return deaths_; }
  int finished() const { return finished_; }
  std::int64_t repeated() const { return repeated_; }  // The most that one worker has reported.
  std::int64_t repeated_planned() const { return repeated_planned_; }  // After planned changes.
  const std::string& trace() const { return trace_; }

 private:
  struct Worker {
    int slot = 0;
    int life = 0;
    pid_t pid = -1;
    UniqueFd pidfd;
    UniqueFd link;
    bool ready = false;
    int seat = -1;      // Its rank in the round; -1: none.
    bool left = false;  // The round.
  };

  void spawn(int slot, int life);
  void wait_once();
  void receive(Worker& worker);
  void take(Worker& worker, const worker_link::WorkerMessage& message);
  void reap(std::size_t at);
  void send(Worker& worker, const worker_link::AgentMessage& message);
  void end_round(int lost_rank, const std::string& why);
  void seat_if_possible();
  void note(const std::string& line) { trace_ += line + "\n"; }
  bool any_seated() const;

  const ElasticHostOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<worker_sdk::StoreHost> store_;
  int round_ = -1;
  bool ending_ = false;          // All leave the round,
  bool ending_planned_ = false;  // at a boundary.
  bool last_was_planned_ = false;
  int replaced_ = 0, rounds_ = 0, planned_ = 0, deaths_ = 0, finished_ = 0;
  std::int64_t repeated_ = 0, repeated_planned_ = 0;
  std::string trace_, problem_;
};

}  // namespace ddprun::test
