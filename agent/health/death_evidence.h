#pragma once
// What shows from outside why a worker has ended: the kernel's out-of-memory killer, the driver of
// its GPU, the end of a batch job's time. Used by the agent; health/fault.h judges what the worker
// itself has shown.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/worker_death.h"

namespace ddprun::agent {

// Whether the kernel's out-of-memory killer has been at work since the workers were started: the
// counters of this process' memory cgroup (v1 and v2) and of the machine, and the kernel's log if
// it may be read. For a worker that was killed by SIGKILL.
class OomWatch {
 public:
  // `root` stands before every path: for tests.
  explicit OomWatch(std::string root = "");

  // Workers are about to be started: what has been counted so far is not about them.
  void begin();

  // What shows that the process was ended by the OOM killer, as a half sentence; empty if nothing
  // does. The counters are raised before the process dies, so that one check is enough. If the
  // kernel's log can be read back to begin() and numbers processes as we do, it decides: a process
  // that it does not name was not ended by the OOM killer.
  std::string evidence(int pid) const;

 private:
  struct Counts {
    std::uint64_t cgroup = 0;
    std::uint64_t machine = 0;
  };
  Counts count() const;
  std::string find_cgroup_file() const;

  std::string root_;
  std::string cgroup_file_;  // Empty: no memory cgroup can be read.
  Counts at_start_;
  std::int64_t began_us_ = 0;                         // On the clock of the kernel's log.
  mutable std::pair<int, std::string> last_{-1, ""};  // The latest evidence() that read it.
};

// The number after the word "oom_kill" at the start of a line: memory.events, memory.oom_control
// and /proc/vmstat all have it.
std::uint64_t oom_kills_in(std::string_view text);

// The path of the memory cgroup in the text of /proc/self/cgroup, below its own hierarchy's root.
struct MemoryCgroup {
  bool v2 = false;
  std::string path;
};
MemoryCgroup memory_cgroup_in(std::string_view text);

// What the driver of NVIDIA's GPUs has written to the kernel's log since the workers were started:
// its Xid messages, of which some show a defect of the hardware and others a mistake of a program.
// For workers that failed with an error of CUDA or NCCL.
struct Xid {
  int number = 0;
  int pid = 0;       // Of the process that used the GPU; 0: the line names none.
  std::string text;  // "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
};

// The message in a line of the kernel's log; absent: it has none.
std::optional<Xid> xid_in(std::string_view line);

// Whether that number shows that the GPU, its memory or its links are broken, by NVIDIA's table.
bool is_of_hardware(int xid);

// Of `death`, an error of CUDA or NCCL: judges it anew if `xid` shows more.
void add_xid(const Xid& xid, WorkerDeath& death);

class GpuLog {
 public:
  // `root` stands before every path: for tests.
  explicit GpuLog(std::string root = "") : root_(std::move(root)) {}

  // Workers are about to be started: what was logged before `microseconds` since the boot is not
  // about them.
  void begin(std::int64_t microseconds) { began_ = microseconds; }

  // Adds what the log has since then, if the death may have to do with a GPU.
  void add_to(WorkerDeath& death) const;

 private:
  std::string root_;
  std::int64_t began_ = 0;
};

// Whether the time that a batch system has granted is over: it then ends the processes of the job
// by SIGTERM and, a while later, by SIGKILL, without notifying them. For signals that reach the
// agent, and for workers that signals have ended.

// `end`: the value of SLURM_JOB_END_TIME, seconds since 1970; `job`: of SLURM_JOB_ID. A half
// sentence if `now`, in the same seconds, is at that end or within what Slurm takes to act on it;
// else empty. A job may be granted more time later, which its variables do not show: long after
// that end nothing is known.
std::string time_limit_over(const std::string& end, const std::string& job, std::int64_t now);

// By this process's own environment and clock, for a signal that batch systems use.
std::string time_limit_over(int signal);

}  // namespace ddprun::agent
