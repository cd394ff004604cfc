#pragma once
// The end of a child that has done its work, or was killed: it comes at once, unless the child
// hangs in the kernel as it exits, in a driver or a file system that does not answer.

#include <poll.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "common/system/pidfd.h"

namespace ddprun {

// Reaps the child `pid`; `status` is that of waitpid(). False: it has not ended within `limit`, and
// may be left to the init process.
inline bool reap_within(pid_t pid, std::chrono::milliseconds limit, int& status) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + limit;
  const UniqueFd process = open_pidfd(pid);  // Without one the process is looked at now and then.
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
