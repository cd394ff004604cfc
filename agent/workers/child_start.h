#pragma once
// How workers' processes begin, one and many: with what, what the child does until it is another
// program, and what the agent does meanwhile.

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/workers/end_slots.h"
#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"

namespace ddprun::agent {

struct RosterPlace;

// Everything needed to start one worker.
struct WorkerSpec {
  int local_rank = 0;
  std::vector<std::string> argv;  // argv[0] is a path, already resolved; never searched in PATH.
  std::vector<std::string>
      environment;     // "NAME=value", complete: the child gets this and nothing else.
  int stdout_fd = -1;  // Borrowed; become 1 and 2 of the child, -1 leaves it ours.
  int stderr_fd = -1;
  bool keeps_stdin = false;  // Its standard input is ours; else it is /dev/null.
  int link_fd = -1;          // Borrowed; becomes kLinkDescriptor of the child, -1: it gets none.
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

// What the kernel meant when it refused to execute a file that is there: its ENOENT is then of the
// interpreter that the file names.
// " (the interpreter /opt/python that its first line names is not there)"; empty: errno explains it
// all. Reads the first bytes of the file.
std::string exec_hint(const std::string& path, int error);

// What a worker's process does from its start in our memory until it is another program. For
// child_start.cc, which is the parent's side.
enum class Stage {
  kNone,         // Nothing failed.
  kSession,      // A session and process group of its own.
  kDeathSignal,  // PR_SET_PDEATHSIG.
  kParentGone,   // We ended before the death signal was armed.
  kStreams,      // A table of descriptors of its own: 0, 1, 2 and that of the link.
  kProcessors,   // sched_setaffinity.
  kSignals,      // Default dispositions and mask.
  kExec,         // execve itself.
};

// What the parent gives to the child, and what the child leaves behind.
struct ChildPlan {
  const char* const* argv;
  const char* const* environment;
  int stdout_fd;
  int stderr_fd;
  pid_t parent;
  const cpu_set_t* processors;  // Null: all of the parent's.
  std::size_t processors_bytes;
  const rlimit* descriptors = nullptr;  // Null, both: as we have them.
  const rlimit* processes = nullptr;
  bool keeps_stdin = false;    // 0 stays what it is; else it becomes /dev/null.
  int link_fd = -1;            // Becomes kLinkDescriptor; -1: it gets none.
  const int* slots = nullptr;  // EndSlots::Numbers; null: the child has a copy of our whole table.
  int null_fd = -1;            // /dev/null, and where the part of our table that it copies ends:
  unsigned table_end = 0;      // both only with slots.
  std::uint64_t ignored_signals = 0;  // That we ignore: bit n - 1 for signal n.
  int* noted = nullptr;               // Gets its process id; null: not wanted.
  volatile Stage failed = Stage::kNone;
  volatile int error = 0;
};

// `argument`: a ChildPlan, or null for a child that ends at once. Does not return.
DDPRUN_IN_CHILD int run_child(void* argument);

struct SpawnedProcess {
  int pid = 0;
  UniqueFd pidfd;  // Readable once the process has ended; none if !has_pidfds().
};

// What children that are born together have in common.
struct StartBatch {
  const EndSlots* slots = nullptr;    // Borrowed. Null: each takes our whole table with it.
  std::uint64_t ignored_signals = 0;  // See ignored_signals().
};

// A process that is being started, at the price of vfork: the child borrows our memory until it has
// become the new program, so that the cost does not grow with the agent's size and an exec error
// comes back as a plain variable. Unlike after vfork we go on meanwhile, and may prepare the next.
// What a worker may expect at its start is in posix_process_host.h. Used by Spawner. The thread
// that makes one must not end before the process, which would be killed with it.
class ChildStart {
 public:
  // `place`: of the slots, which no other child that is being born has.
  ChildStart(WorkerSpec spec, WorkerEnds ends, const StartBatch& round, std::size_t place);
  ~ChildStart();  // Waits, too.
  ChildStart(const ChildStart&) = delete;
  ChildStart& operator=(const ChildStart&) = delete;

  // Waits until the child has become the program; once. Or what failed on the way: a child that
  // failed has been reaped already.
  Result<SpawnedProcess> finish();

 private:
  struct Child;
  std::unique_ptr<Child> child_;
};

// Those that this process ignores, and a program that it becomes would, too: bit n - 1 is signal n.
std::uint64_t ignored_signals();

// Whether a process can be born in that cgroup and live. Some kernels (seen with 6.18) take a
// process that is born in a cgroup which has been killed before for one that was forked too late to
// be killed with the others, and kill it.
bool can_start_in(int cgroup_fd);

// Our own environment, "NAME=value" each.
std::vector<std::string> current_environment();

// Starts many workers: while the last ones become their programs, the next is prepared. Owned by
// PosixProcessHost.
class Spawner {
 public:
  Spawner();

  // Begins to start it, with `ends` as its streams. False: an earlier one could not be started, so
  // this one is not.
  bool add(WorkerSpec spec, WorkerEnds ends);

  // Waits until all are started, and gives them in order; the first failure is the last.
  std::vector<Result<SpawnedProcess>> finish();

  // One alone, while no others are being started.
  Result<SpawnedProcess> spawn(WorkerSpec spec);

 private:
  void finish_first();
  void finish_all();

  EndSlots slots_;
  StartBatch round_;
  std::size_t begun_ = 0;  // In this round.
  std::deque<ChildStart> starts_;
  std::vector<Result<SpawnedProcess>> started_;
  bool failed_ = false;
};

}  // namespace ddprun::agent
