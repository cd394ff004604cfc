#pragma once
// Processes that this one has started: held by a descriptor, reaped, and what to report when the
// kernel or a container refuses the call that starts them.

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun {

// A process held by a descriptor. Its number may become that of another; the descriptor never does.

// How to name a system call that this machine does not let us make: an old kernel does not know it,
// and the seccomp profile of an old container engine answers for it.

// By errno. `since` is the kernel that has it as it is used here: "Linux 5.9". Anything but a
// refusal stays the plain failure of `doing`.
inline Failure refused_call(const std::string& doing, const std::string& call,
                            const std::string& since) {
  if (errno != EPERM && errno != ENOSYS) return errno_failure(doing);
  return errno_failure(doing + ": " + call + " is refused: " + since +
                       " is needed, or a container's seccomp profile forbids it");
}

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

// The end of a child that has done its work, or was killed: it comes at once, unless the child
// hangs in the kernel as it exits, in a driver or a file system that does not answer.

// Reaps the child `pid`; `status` is that of waitpid(). False: it has not ended within `limit`, and
// may be left to the init process.
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

}  // namespace ddprun
