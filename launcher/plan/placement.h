#pragma once
// The places of the workers of this machine: processors, GPU, number of threads. Called by
// decide.cc; node.cc and --dry-run use the result.

#include <string>

#include "common/error.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {

Result<Placement> place_workers(const Options& options, int workers_per_node, int local_nodes);

// If GPUs are in MIG mode, what that means for the workers; empty: none is. `slices`: how many they
// may use.
std::string slices_text(const Placement& placement, int slices);

// "placement:   worker 0: GPU 0, processors 0-3, 4 threads\n"; empty if there is none.
std::string to_text(const Placement& placement, int workers_per_node);

}  // namespace ddprun::launcher
