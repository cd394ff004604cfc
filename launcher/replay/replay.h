#pragma once
// `ddprun replay`: starts the program of a bundle (common/bundle.h) alone, on this terminal, with
// the job in replay mode (worker_sdk/job/job_replay.cc), which prints what comes of it. What a
// process that crashes cannot print is printed here. Called by main.cc.

#include <string>
#include <vector>

#include "common/bundle.h"
#include "common/error.h"
#include "common/worker_death.h"
#include "launcher/options/replay_options.h"

namespace ddprun::launcher {

// The program of a bundle, as `ddprun replay` starts it.
struct ReadBundle {
  std::string path;  // Absolute, as the program may run in another folder.
  Bundle bundle;
};

Result<ReadBundle> read_bundle(const std::string& given);

// The bundle's, or that of the options, with what is to be before it.
Result<std::vector<std::string>> command_of(const ReplayOptions& options, const Bundle& bundle);

// For the bundle's own program that of the run, if it is here.
void enter_folder(const ReplayOptions& options, const Bundle& bundle);

// Of this process, which the program inherits.
void set_environment(const ReplayOptions& options, const ReadBundle& read);

// In this process's group, so that a debugger has the terminal. The status of waitpid().
Result<int> run_here(const std::vector<std::string>& command);
WorkerDeath death_of(int status);  // Signal and exit code.

// `argv` begins with "replay". Returns the exit code.
int run_replay(int argc, const char* const* argv);

// For --show. Pure.
std::string bundle_text(const Bundle& bundle);

}  // namespace ddprun::launcher
