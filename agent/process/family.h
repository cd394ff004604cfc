#pragma once
// Which processes belong to a worker: itself, its process group, its session, and all that descends
// from those. Decided by what /proc says of every process to everybody, so that it holds for setuid
// programs too, whose environment nobody but root may read. Pure; used by keeper.cc.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

// What /proc says of processes. Used by strays, keeper, cgroup and whoever describes a process that
// does not end.

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

// Of /proc/<pid>/stat, "pid (name) state ppid ...", which everybody may read; the name may hold
// blanks and parentheses.
ProcStat parse_proc_stat(const std::string& text);
ProcStat read_proc_stat(int pid, const std::string& proc = "/proc");

// Stopped by a signal or held by a debugger: it acts on no signal but SIGKILL and SIGCONT.
bool is_halted(char state);
std::string halted_text(char state);  // "it is stopped (SIGSTOP, or a debugger)"

// "pid 4711 (python3), state D (uninterruptible sleep in nfs_wait_bit_killable)": what a person
// needs to know of a process that ignores SIGKILL.
std::string describe_process(int pid, const std::string& proc = "/proc");

// Tells an agent that its guardian is gone. The agent must then kill all below it at once: with the
// guardian went the last process that would have picked up what the workers leave behind.
class ParentWatch {
 public:
  explicit ParentWatch(boost::asio::io_context& loop) : pidfd_(loop) {}

  // Calls `on_gone` from the loop, once, when `parent` has ended, which it may have already.
  // `parent` is the process id that the guardian had before it forked us.
  Result<void> start(int parent, std::function<void()> on_gone);

 private:
  boost::asio::posix::stream_descriptor pidfd_;
};

// From when until when something happened, as ProcStat::started.
struct TickSpan {
  std::uint64_t from = 0;
  std::uint64_t until = 0;  // 0: it is not known.
};

// A worker; it leads its session, which a leader cannot leave.
struct FamilyHead {
  int pid = 0;
  TickSpan started = {};
  bool reaped = false;  // Only what it has left behind is meant.
};

struct FamilyMember {
  int pid = 0;
  int parent = 0;
  int group = 0;
  int session = 0;
  std::uint64_t started = 0;
  bool dead = false;  // Not reaped yet.
};

// The processes of `all` that belong to one of `heads` and live. A number that is a stranger's by
// now brings in nobody. Where the head was reaped, its number may have been a stranger's meanwhile:
// then only those count of which `is_hidden`, which asks whether their environment is unreadable,
// says so; the others are known by the mark that is in it.
std::vector<FamilyMember> families_of(const std::vector<FamilyHead>& heads,
                                      const std::vector<FamilyMember>& all,
                                      const std::function<bool(int pid)>& is_hidden);

// A process of a worker's group, as far as it decides which signals it gets.
struct GroupMember {
  int pid = 0;
  int parent = 0;
  std::string command = {};  // /proc/<pid>/cmdline: arguments, each ended by a NUL.
  bool handles = false;      // It catches, ignores or blocks the signal.
};

// The processes of `group` that get a signal which asks the worker `leader` to end or to save: the
// worker, and the programs that it has started, such as the one that a shell script runs. A program
// that handles the signal may still need the processes that compute for it, its forks for a
// DataLoader and those of Python's multiprocessing, and ends them itself: they get none.
std::vector<int> signal_receivers(int leader, const std::vector<GroupMember>& group);

}  // namespace ddprun::agent
