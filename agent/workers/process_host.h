#pragma once
// The workers of one node as the agent sees them: the seam between its decisions (supervisor) and
// the operating system. PosixProcessHost is the real one; tests of the agent use a fake.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"
#include "common/time.h"
#include "common/worker_death.h"

namespace ddprun::agent {

struct RosterPlace;

// Everything needed to start one worker.
struct WorkerSpec {
  int local_rank = 0;
  std::vector<std::string> argv;  // argv[0] is a path, already resolved; never searched in PATH.
  std::vector<std::string>
      environment;  // "NAME=value", complete: the child gets this and nothing else.
  int stdout_fd =
      -1;  // Borrowed; become 1 and 2 of the child, -1 leaves it ours.
  int stderr_fd = -1;
  bool keeps_stdin = false;  // Its standard input is ours; else it is /dev/null.
  int link_fd = -1;  // Borrowed; becomes kLinkDescriptor of the child, -1: it gets none.
  std::vector<int> processors = {};  // It may run on; empty: on all that we may.
  int cgroup_fd = -1;  // Borrowed: the folder of the cgroup to be born in; -1: our own.
  std::optional<Limits> limits = {};    // Soft ones that it gets; absent: ours.
  RosterPlace* roster_place = nullptr;  // Where it notes that it lives; null: not noted.
};

// A worker's ends of its streams and of its link: WorkerSpec::stdout_fd, stderr_fd and link_fd. To
// be closed once it has been spawned.
struct WorkerEnds {
  UniqueFd stdout_end;
  UniqueFd stderr_end;
  UniqueFd link_end = {};
};

// The number that the link has in a worker.
constexpr int kLinkDescriptor = 3;

// In the environment of each worker, with a value of its own: what it starts is known by it.
constexpr const char* kWorkerVariable = "DDPRUN_WORKER";

class ProcessHost {
 public:
  virtual ~ProcessHost() = default;

  // Starts one worker in a session of its own with PDEATHSIG=SIGKILL, default signal mask and
  // dispositions, all other descriptors closed. Returns its process id. A Failure names the stage
  // and errno ("starting local rank 3: execve ./train: Permission denied").
  virtual Result<int> spawn(const WorkerSpec& spec) = 0;

  // Sends `signal` to the process group of every living worker. If a worker handles a signal, the
  // processes that compute for it do not get it: signal_receivers().
  virtual void signal_workers(int signal) = 0;

  virtual int living() const = 0;

  // SIGKILLs what workers left behind (processes re-parented to us, the sub-reaper), until none is
  // left; bounded time. Living workers and what hangs below them are spared.
  virtual void kill_strays() = 0;

  // Called from the loop, once per worker, in the order in which they are reaped: local rank, pid,
  // exit code and signal of the record are set. With it, when the end was noticed: before it was
  // reaped, which others may have seen.
  std::function<void(const WorkerDeath&, TimePoint noticed)> on_exit;
};

}  // namespace ddprun::agent
