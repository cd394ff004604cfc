#pragma once
// The program of a bundle, as `ddprun replay` starts it.

#include <string>
#include <vector>

#include "common/bundle.h"
#include "common/error.h"
#include "common/worker_death.h"
#include "launcher/options/replay_options.h"

namespace ddprun::launcher {

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

}  // namespace ddprun::launcher
