#pragma once
// Options and this machine -> a LaunchPlan. Looks at the file system, the interfaces, the GPUs and
// the name service; starts nothing. Called by run/launch.cc.

#include "common/error.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

// Warnings are logged. A failure is one sentence for the user.
Result<LaunchPlan> decide(Options options, const Environment& environment);

}  // namespace ddprun::launcher
