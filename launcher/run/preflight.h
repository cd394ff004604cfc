#pragma once
// --preflight: the checks of `ddprun doctor` for this node, before a run or beside its start.
// Called by launch.cc.

#include "common/error.h"
#include "launcher/guard/guardian.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

// --preflight full: judges this node before it joins. A failure: it is unfit, and why has been
// logged; it must not join, so that a spare takes its seat.
Result<void> check_fitness(const LaunchPlan& plan);

// --preflight fast: a service beside the agents that logs the problems of this node, one line each,
// and nothing if there are none.
GuardedChild preflight_child(const LaunchPlan& plan);

}  // namespace ddprun::launcher
