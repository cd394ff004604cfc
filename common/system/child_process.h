#pragma once
// A child that works for this process, a program, or a function in a fork: the launcher starts ssh,
// scripts, tools, look-ups of names and probes this way. Agents (launcher/guard) and workers
// (agent/workers) are started elsewhere, for they need more care.

#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/held_process.h"
#include "common/time.h"

namespace ddprun {

// Reaps the child `pid`, which has done its work or was killed; `status` is that of waitpid().
// False: it has not ended within `limit`, as it hangs in the kernel, in a driver or a file system
// that does not answer, and may be left to the init process.
inline bool reap_within(pid_t pid, std::chrono::milliseconds limit, int& status) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + limit;
  const UniqueFd process = open_pidfd(pid);  // Without one the process is checked now and then.
  for (;;) {
    const pid_t seen = ::waitpid(pid, &status, WNOHANG);
    if (seen == pid || (seen < 0 && errno != EINTR)) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    pollfd ends{process.get(), POLLIN, 0};
    ::poll(&ends, 1, static_cast<int>((process ? left : std::min(left, kLookAgain)).count()));
  }
}

struct ChildProcess {
  int pid = 0;     // 0: not started, or reaped.
  UniqueFd pidfd;  // Readable once the process has ended; none if !has_pidfds().
  UniqueFd input;  // The three pipes are non-blocking.
  UniqueFd output;
  UniqueFd errors;

  bool runs() const { return pid > 0; }
  bool has_ended() const { return child_has_ended(pid, pidfd); }
};

struct ProgramOptions {
  bool own_group = true;  // A terminal's Ctrl-C reaches this process only, which may pass it on.
  bool errors_in_output = false;  // Standard error goes to `output`, too.
};
Result<ChildProcess> start_program(const std::vector<std::string>& argv,
                                   const ProgramOptions& options = {});

// The function runs in a fork, in a process group of its own, and the process ends with this one.
// For fork_function(), `body` returns the exit code; for fork_answer(), the child writes what
// `body` returns to `output`.
Result<ChildProcess> fork_function(const std::function<int()>& body);
Result<ChildProcess> fork_answer(const std::function<std::string()>& body);

// Kills the process and, if it leads one, its process group.
void kill(const ChildProcess& process);

// The exit code of a process that has ended, 128 + n for signal n.
int reap(ChildProcess& process);

// Waits for the end. Absent: the process has not ended within `limit`; the init process may reap
// it.
std::optional<int> reap_within(ChildProcess& process, Milliseconds limit);

// What comes through the pipe until its other end is closed; bytes beyond `bytes_max` are dropped.
struct PipedAnswer {
  std::string text;
  bool in_time = true;  // False: the pipe was still open at the deadline.
};
PipedAnswer read_until(const UniqueFd& pipe, TimePoint until, std::size_t bytes_max);

}  // namespace ddprun
