#pragma once
// A process held by a descriptor. Its number may become that of another; the descriptor never does.

#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "common/system/refused_call.h"
#include "common/system/unique_fd.h"

namespace ddprun {

// None, and errno says why, if there is no such process. It is readable once the process has ended.
inline UniqueFd open_pidfd(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Why a process cannot be watched, by errno of open_pidfd(): `doing` is "watching the agent".
inline Failure pidfd_failure(const std::string& doing) {
  return refused_call(doing, "pidfd_open", "Linux 5.9");
}

// False, and errno says why, if it was not sent. Signal 0 only asks whether it could be.
inline bool send_signal(const UniqueFd& pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

}  // namespace ddprun
