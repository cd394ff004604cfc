#pragma once
// Reads /proc about processes. Used by strays, keeper and cgroup, and to describe a process that
// does not end.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// The whole file; empty if it cannot be read.
std::string read_proc_file(const std::string& path);

// The names in a folder that are numbers: processes, threads.
std::vector<int> numbered_entries(const std::string& folder);

// Whether `entry`, "NAME=value", is in the environment that the process was started with. No: it
// cannot be read, as that of a setuid program, or the process has ended.
bool has_variable(int pid, const std::string& entry);

// The process catches, ignores or blocks `signal` (/proc/<pid>/status); false if that is unknown.
bool handles_signal(int pid, int signal);

struct ProcStat {
  std::string name;
  char state = '?';  // 'R', 'S', 'D' (uninterruptible), 'T' (stopped), 'Z' (dead, not reaped) ...
  int parent = 0;
  bool exiting = false;  // On its way out, or gone: no signal changes how it ends.
  int group = 0;
  int session = 0;
  std::uint64_t started = 0;   // Clock ticks since the boot; with the number, it is one process.
  std::uint64_t ran = 0;       // Clock ticks of processor time, of all its threads.
  std::uint64_t resident = 0;  // Pages in memory.
};

// Now, in what ProcStat::started counts.
std::uint64_t ticks_since_boot();

// Of /proc/<pid>/stat, "pid (name) state ppid ...", which every user may read; the name may hold
// blanks and parentheses.
ProcStat parse_proc_stat(const std::string& text);
ProcStat read_proc_stat(int pid, const std::string& proc = "/proc");

// Stopped by a signal or held by a debugger: it acts on no signal but SIGKILL and SIGCONT.
bool is_halted(char state);
std::string halted_text(char state);  // "it is stopped (SIGSTOP, or a debugger)"

// "pid 4711 (python3), state D (uninterruptible sleep in nfs_wait_bit_killable)": what a person
// needs to know of a process that ignores SIGKILL.
std::string describe_process(int pid, const std::string& proc = "/proc");

// The kernel's log, if this user may read it. Used by agent/health and by the doctor's probe.

// Passes each line of the log at `path`, the oldest first, to `take`, until `take` returns false or
// the end is reached. A line is "6,1234,5678901,-;text", the third number being the microseconds
// since the boot. Never waits; no line if the log may not be read.
void read_kernel_log(const std::string& path, const std::function<bool(std::string_view)>& take);

// Those microseconds; nothing if the line does not begin so.
std::optional<std::int64_t> kernel_log_time(std::string_view line);

}  // namespace ddprun::agent
