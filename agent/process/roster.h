#pragma once
// Which workers a job has, in memory that the launcher, its agents and its keeper share, so that it
// outlives any of them. A worker is in it before it is another program: it notes itself, while it
// still runs in the agent's memory (child_start.cc). Agents write, the keeper reads (keeper.h).

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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

  // For one worker of this process, before its start; null if there is no room. If workers are
  // replaced while others live on, workers with an empty process group make room first.
  RosterPlace* claim();
  static void release(RosterPlace* place);  // It was never started. Null: does nothing.
  static void note_start(RosterPlace* place, TickSpan started);
  void reaped(int pid);  // Its number may become a stranger's.
  // What the workers of that agent have left behind is gone too; its process `but` lives on.
  void forget(int owner, int but = 0);

  std::vector<FamilyHead> heads() const;

 private:
  RosterPlace* claim_free();
  WorkerRoster(RosterPlace* places, std::size_t size) : places_(places), size_(size) {}

  RosterPlace* places_;
  std::size_t size_;
};

// Finds and kills processes that workers left behind. A process whose parent dies becomes a child
// of the nearest sub-reaper above it: the agent, or the guardian once the agent is gone. If the
// agent or the guardian finds children that it did not start itself, it kills them and all below
// them. Used by PosixProcessHost and guard().
constexpr std::chrono::seconds kStrayLimit{
    2};  // SIGKILL takes longer only in uninterruptible sleep.

// Makes this process the one to which orphaned descendants are re-parented. A failure: the kernel
// does not let it, and what detaches itself from a worker may outlive the run.
Result<void> become_sub_reaper();

// The processes that `pid` has started and not reaped, by any of its threads.
std::vector<int> children_of(int pid);

// Every child of this process, dead ones that are not reaped yet included. Reliable: only we can
// take an entry out of that list.
std::vector<int> children_of_self();

// SIGKILLs everything below `pid`, a child of this process, children before their parents: while
// `pid` is there, it shows whose they are. Does not wait.
void kill_descendants(int pid);

struct StrayReport {
  int killed = 0;                  // Direct children killed and reaped.
  std::vector<std::string> stuck;  // "pid 4711 (python3), state D": still there when time was up.
};

// SIGKILLs every child that `is_known` does not know, and everything below it, and reaps what
// becomes ours, until no such child is left or `limit` has passed. Blocks while it waits.
StrayReport kill_unknown_children(const std::function<bool(int pid)>& is_known,
                                  std::chrono::milliseconds limit = kStrayLimit);

// Reaps each dead child that `is_known` does not know; stops at the first dead one that it does
// know and returns its pid, else 0. Never takes away the exit of a known child. Does not block.
int reap_unknown_children(const std::function<bool(int pid)>& is_known);

}  // namespace ddprun::agent
