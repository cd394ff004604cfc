#pragma once
// A child process with its three pipes: one ssh, or a script. Used by hosts_run.cc and
// discovery_run.cc.

#include <string>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::launcher {

struct PipedProcess {
  int pid = 0;
  UniqueFd pidfd;  // Readable once it has ended.
  UniqueFd input;  // Non-blocking, as are the other two.
  UniqueFd output;
  UniqueFd errors;
};

// In a process group of its own: a terminal's Ctrl-C is ours to pass on.
Result<PipedProcess> start_piped(const std::vector<std::string>& argv);

// The exit code of one that has ended, 128 + n for signal n.
int reap(PipedProcess& process);

}  // namespace ddprun::launcher
