#pragma once
// `ddprun replay`: starts the program of a bundle (common/bundle.h) alone, on this terminal, with
// the job in replay mode (worker_sdk/job/job_replay.cc), which prints what comes of it. What a
// process that crashes cannot print is printed here. Called by main.cc.

#include <string>
#include <vector>

#include "common/bundle.h"
#include "launcher/options/replay_options.h"

namespace ddprun::launcher {

// `argv` begins with "replay". Returns the exit code.
int run_replay(int argc, const char* const* argv);

// For --show. Pure.
std::string bundle_text(const Bundle& bundle);

}  // namespace ddprun::launcher
