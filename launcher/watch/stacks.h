#pragma once
// The processes of the ranks of this machine's runs, and `ddprunctl stacks`, which shows where each
// of them is.

#include <string>
#include <string_view>

#include "common/error.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

// `ddprunctl stacks`: where a worker on this machine is, for whoever wants to know why it does not
// go on. Called by ctl_main.cc.

// The process of a rank on this machine, for those that look into it: ddprunctl stacks and debug.

// The pid of a rank, from the agents of the run here; from /proc, with a warning, if they do not
// answer. Blocks.
Result<int> pid_of(const PastRun& run, int rank);

// The worker below the process `launcher` that was started as this rank; 0: there is none. A worker
// that keeps its process may have another rank by now, which only its agent knows.
int worker_started_as(int launcher, int rank, const std::string& proc = "/proc");

// A variable of the environment that a process was started with; empty where there is none, or it
// may not be read. `process`: its folder in /proc.
std::string started_with(const std::string& process, std::string_view name);

// Prints the stacks of all of its threads: by py-spy for Python, by gdb or eu-stack, else what the
// kernel says. Each part says which it is, and why one is missing.
Result<void> print_stacks(const std::string& run, int rank);

// What the kernel says of the threads of a process. Pure but for /proc.
std::string kernel_view(int pid, const std::string& proc = "/proc");

}  // namespace ddprun::launcher
