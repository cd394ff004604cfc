#pragma once
// Which workers a job has, in memory that the launcher, its agents and its keeper share, so that it
// outlives any of them. A worker is in it before it is another program: it notes itself, while it
// still runs in the agent's memory (newborn.cc). Agents write, the keeper reads (keeper.h).

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/process/family.h"
#include "common/error.h"

namespace ddprun::agent {

// All 0: free.
struct RosterPlace {
  std::atomic<int> owner;  // The agent's pid.
  std::atomic<int> pid;    // 0: not born yet.
  std::atomic<bool> reaped;
  std::atomic<std::uint64_t> started_from;  // A TickSpan.
  std::atomic<std::uint64_t> started_until;
};

class WorkerRoster {
 public:
  // For `workers` at a time, and as many more that have ended but may have left something behind.
  static Result<std::shared_ptr<WorkerRoster>> make(std::size_t workers);
  ~WorkerRoster();
  WorkerRoster(const WorkerRoster&) = delete;
  WorkerRoster& operator=(const WorkerRoster&) = delete;

  // For one worker of this process, before its birth; null if there is no room. Where workers are
  // replaced while others live on, those whose process group is empty make room first.
  RosterPlace* claim();
  static void release(RosterPlace* place);  // It was never born. Null: does nothing.
  static void born(RosterPlace* place, TickSpan started);
  void reaped(int pid);  // Its number may become a stranger's.
  // What the workers of that agent have left behind is gone too.
  void forget(int owner);

  std::vector<FamilyHead> heads() const;

 private:
  RosterPlace* claim_free();
  WorkerRoster(RosterPlace* places, std::size_t size) : places_(places), size_(size) {}

  RosterPlace* places_;
  std::size_t size_;
};

}  // namespace ddprun::agent
