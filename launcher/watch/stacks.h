#pragma once
// The processes of the ranks of this machine's runs, and `ddprunctl stacks`, which shows their
// stacks.

#include <string>
#include <string_view>

#include "common/error.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

// `ddprunctl stacks`: the stacks of a worker on this machine, to find out why it does not continue.
// Called by ctl_main.cc.

// The process of a rank on this machine: for ddprunctl stacks and debug.

// The pid of a rank, from the agents of the run here; from /proc, with a warning, if they do not
// answer. Blocks.
Result<int> pid_of(const PastRun& run, int rank);

// The worker below the process `launcher` that was started as this rank; 0: there is none. A worker
// that keeps its process may have another rank by now, which only its agent knows.
int worker_started_as(int launcher, int rank, const std::string& proc = "/proc");

// A variable of the environment that a process was started with; empty if it is not set, or may not
// be read. `process`: its folder in /proc.
std::string started_with(const std::string& process, std::string_view name);

// Prints the stacks of all of its threads: by py-spy for Python, by gdb or eu-stack, else the
// kernel's view. Each part names its tool, or why it is missing.
Result<void> print_stacks(const std::string& run, int rank);

// The kernel's view of the threads of a process. Pure but for /proc.
std::string kernel_view(int pid, const std::string& proc = "/proc");

}  // namespace ddprun::launcher
