#pragma once
// Processes that this one has started: held by a descriptor, signalled, reaped. And a child that
// works for this one, a program, or a function in a fork: the launcher starts ssh, scripts, tools,
// look-ups of names and probes this way. Agents (launcher/guard) and workers (agent/workers) are
// started elsewhere, for they need more care.

#include <poll.h>
#include <sys/syscall.h>
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
#include "common/time.h"

namespace ddprun {

// How to name a system call that this machine does not let us make: an old kernel does not know it,
// and the seccomp profile of an old container engine answers for it. By errno. `since` is the
// kernel that has it as it is used here: "Linux 5.9". Anything but a refusal stays the plain
// failure of `doing`.
inline Failure refused_call(const std::string& doing, const std::string& call,
                            const std::string& since) {
  if (errno != EPERM && errno != ENOSYS) return errno_failure(doing);
  return errno_failure(doing + ": " + call + " is refused: " + since +
                       " is needed, or a container's seccomp profile forbids it");
}

// A process held by a descriptor: its number may become that of another, the descriptor never does.
// None, with errno set, if there is no such process. It is readable once the process has ended.
inline UniqueFd open_pidfd(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Why a process cannot be watched, by errno of open_pidfd(): `doing` is "watching the agent".
inline Failure pidfd_failure(const std::string& doing) {
  return refused_call(doing, "pidfd_open", "Linux 5.9");
}

// False, with errno set, if it was not sent. Signal 0 only checks whether it could be.
inline bool send_signal(const UniqueFd& pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

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
    constexpr std::int64_t kPauseMs = 10;
    pollfd ends{process.get(), POLLIN, 0};
    ::poll(&ends, 1, static_cast<int>(process ? left.count() : std::min(left.count(), kPauseMs)));
  }
}

struct ChildProcess {
  int pid = 0;     // 0: not started, or reaped.
  UniqueFd pidfd;  // Readable once the process has ended.
  UniqueFd input;  // The three pipes are non-blocking.
  UniqueFd output;
  UniqueFd errors;

  bool runs() const { return pid > 0; }
};

struct ProgramOptions {
  bool own_group = true;  // A terminal's Ctrl-C reaches this process only, which may pass it on.
  bool errors_in_output = false;  // Standard error goes to `output`, too.
};
Result<ChildProcess> start_program(const std::vector<std::string>& argv,
                                   const ProgramOptions& options = {});

// The function runs in a fork, in a process group of its own, and the process ends with this one.
// Works without pidfds, too. For fork_function(), `body` returns the exit code; for
// fork_answer(), the child writes what `body` returns to `output`.
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
