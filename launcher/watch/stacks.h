#pragma once
// `ddprunctl stacks`: where a worker on this machine is, for whoever wants to know why it does not
// go on. Called by ctl_main.cc.

#include <string>

#include "common/error.h"

namespace ddprun::launcher {

// Prints the stacks of all of its threads: by py-spy for Python, by gdb or eu-stack, else what the
// kernel says. Each part says which it is, and why one is missing.
Result<void> print_stacks(const std::string& run, int rank);

// What the kernel says of the threads of a process. Pure but for /proc.
std::string kernel_view(int pid, const std::string& proc = "/proc");

}  // namespace ddprun::launcher
