#pragma once
// Starts one child of the guardian. Separate from it because everything here runs between fork and
// exec.

#include <csignal>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "launcher/guard/guardian.h"

namespace ddprun::launcher {

struct GuardedProcess {
  int pid = 0;
  UniqueFd pidfd;
};

// What the child must undo of the guardian's own arrangements.
struct GuardianSetup {
  sigset_t mask_before{};
  std::vector<int> own_fds;  // To be closed in a forked child.
};

// Signals must be blocked. The child itself reports a failing exec, which shows as
// kExitCannotStart.
Result<GuardedProcess> start_guarded(const GuardedChild& child, const GuardianSetup& setup);

}  // namespace ddprun::launcher
