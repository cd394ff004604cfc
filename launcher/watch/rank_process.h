#pragma once
// The process of a rank on this machine, for those that look into it: ddprunctl stacks and debug.

#include <string>
#include <string_view>

#include "common/error.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

// The pid of a rank, from the agents of the run here; from /proc, with a warning, if they do not
// answer. Blocks.
Result<int> pid_of(const PastRun& run, int rank);

// The worker below the process `launcher` that was started as this rank; 0: there is none. A worker
// that keeps its process may have another rank by now, which only its agent knows.
int worker_started_as(int launcher, int rank, const std::string& proc = "/proc");

// A variable of the environment that a process was started with; empty where there is none, or it
// may not be read. `process`: its folder in /proc.
std::string started_with(const std::string& process, std::string_view name);

}  // namespace ddprun::launcher
