#pragma once
// Whether the kernel's out-of-memory killer has been at work since the workers were started: the
// counters of this process' memory cgroup (v1 and v2) and of the machine, and the kernel's log if
// it may be read. Used by the agent when a worker was killed by SIGKILL.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::agent {

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

}  // namespace ddprun::agent
