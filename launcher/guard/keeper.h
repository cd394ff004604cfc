#pragma once
// The last resort. Agents clean up when the guardian is killed, the guardian when an agent is; this
// process, a fork of the guardian that does nothing else than wait for its end, cleans up when both
// are killed together: processes that workers had detached by setsid would otherwise stay.
//
//   guardian ends by itself   the keeper is dismissed; it has done nothing
//   guardian killed           SIGKILL to the job's cgroup, to the workers and their families, to
//                             processes with the job's mark in their environment, and to agents
//                             that do not end by themselves; then the job's temporary folders are
//                             removed
//   guardian leaves a process the same; then the keeper sleeps until that process has ended, and
//   that survives SIGKILL     removes the job's cgroup, which would stay for ever
//   keeper killed             the guardian starts another, with the same knowledge
//   both killed               workers still die by their death signal; detached processes live on,
//                             in the cgroup if there is one
//
// It is not a child of an agent and is called "keeper", so that neither a signal to the job's
// process groups nor `pkill ddprun` reaches it. Used by guard().

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/roster.h"
#include "common/error.h"

namespace ddprun::launcher {

// The variable that a run's processes have in their environment; its value is the job of one
// launcher.
inline constexpr const char* kJobVariable = "DDPRUN_JOB";

struct KeeperTask {
  // "NAME=value": in the environment of all processes that workers start, and of no others.
  std::string mark;
  std::string cgroup;  // The job's folder, or empty.
  std::shared_ptr<agent::WorkerRoster> workers = nullptr;
  std::vector<std::string> folders = {};  // Removed with their content, when nothing else is left.
};

class Keeper {
 public:
  Keeper() = default;  // Without a keeper.
  static Result<Keeper> start(const KeeperTask& task);

  int pid() const { return pid_; }
  // Reports the guardian's children: agents and the daemon, which hide their environment from the
  // keeper if they know a token.
  void child_started(int pid);
  void child_ended(int pid);
  // Our end is orderly: the keeper ends, too.
  void dismiss();
  void wait();  // Waits until it is gone; after dismiss(), or if it has ended.

 private:
  int pid_ = 0;
  struct SharedPids* agents_ = nullptr;  // Seen by both; lives as long as we do.
};

// The keeper's work when the guardian is gone: SIGKILLs each process that carries `mark`, until a
// scan of all finds none, or `limit` has passed. Returns how many signals it sent.
int kill_marked(const std::string& mark, std::chrono::milliseconds limit);

// The same for the workers and all processes that belong to them, see family.h.
int kill_families(const agent::WorkerRoster& workers, std::chrono::milliseconds limit);

}  // namespace ddprun::launcher
