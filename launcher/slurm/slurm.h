#pragma once
// `ddprun slurm`: submits a run to Slurm by sbatch, or prints what it would submit. Called by
// main.cc.

#include "launcher/options/options.h"

namespace ddprun::launcher {

// `argv` begins with "slurm". Returns the exit code: kExitOk if all jobs are submitted, kExitUsage,
// or kExitFailed if sbatch is missing or refuses.
int run_slurm(int argc, const char* const* argv, const Environment& environment);

}  // namespace ddprun::launcher
