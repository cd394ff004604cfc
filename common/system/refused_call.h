#pragma once
// How to name a system call that this machine does not let us make: an old kernel does not know it,
// and the seccomp profile of an old container engine answers for it.

#include <cerrno>
#include <string>

#include "common/error.h"

namespace ddprun {

// By errno. `since` is the kernel that has it as it is used here: "Linux 5.9". What is no refusal
// stays the plain failure of `doing`.
inline Failure refused_call(const std::string& doing, const std::string& call,
                            const std::string& since) {
  if (errno != EPERM && errno != ENOSYS) return errno_failure(doing);
  return errno_failure(doing + ": " + call + " is refused: " + since +
                       " is needed, or a container's seccomp profile forbids it");
}

}  // namespace ddprun
