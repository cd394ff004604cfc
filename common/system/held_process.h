#pragma once
// Processes that are held by a descriptor: a process's number may become that of another one, the
// descriptor never does. It is a pidfd, which is readable once the process has ended. A kernel
// before Linux 5.3 has none, and the seccomp profile of an old container engine refuses them. Then
// it is the process's folder in /proc, which differs in two ways: nothing becomes readable, so that
// its end is looked for every kLookAgain; and before 5.1 a signal is sent by number microseconds
// after the folder was checked. Our own children need neither: until we reap one, its number is its
// own, and SIGCHLD reports its end.

#include <cerrno>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun {

// How to name a system call that this machine does not let us make: an old kernel does not know it,
// and the seccomp profile of an old container engine answers for it. By errno. `since` is the
// kernel that has it as it is used here: "Linux 3.4". Anything but a refusal stays the plain
// failure of `doing`.
inline Failure refused_call(const std::string& doing, const std::string& call,
                            const std::string& since) {
  if (errno != EPERM && errno != ENOSYS) return errno_failure(doing);
  return errno_failure(doing + ": " + call + " is refused: " + since +
                       " is needed, or a container's seccomp profile forbids it");
}

// For callers without a pidfd to wait on.
inline constexpr Milliseconds kLookAgain{10};

// Whether this process may have pidfds. Asks once.
bool has_pidfds();

// None, with errno set, if there is no such process, or if !has_pidfds().
UniqueFd open_pidfd(int pid);

// A pidfd or a folder. None, with errno set, if there is no such process.
UniqueFd hold_process(int pid);

// For what hold_process() returns. An end counts once all threads are gone, reaped or not.
bool has_ended(const UniqueFd& process);
bool ends_within(const UniqueFd& process, Milliseconds limit);

// False, with errno set, if it was not sent. Signal 0 only checks whether it could be.
bool send_signal(const UniqueFd& process, int signal);

// Whether our child `pid`, whose pidfd that is if there are pidfds, has ended. Does not reap it.
bool child_has_ended(int pid, const UniqueFd& pidfd);

}  // namespace ddprun
