#pragma once
// One ssh as a child process with its three pipes. Used by hosts_run.cc.

#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/unique_fd.h"

namespace ddprun::launcher {

// ssh's whole command line: the user's words, then what we ask for, the target, and what runs
// there.
std::vector<std::string> ssh_argv(const std::vector<std::string>& ssh, const std::string& target,
                                  const std::string& program);

struct SshProcess {
  int pid = 0;
  UniqueFd pidfd;  // Readable once it has ended.
  UniqueFd input;  // Non-blocking, as are the other two.
  UniqueFd output;
  UniqueFd errors;
};

// In a process group of its own: a terminal's Ctrl-C is ours to pass on.
Result<SshProcess> start_ssh(const std::vector<std::string>& argv);

// The exit code of one that has ended, 128 + n for signal n.
int reap(SshProcess& process);

}  // namespace ddprun::launcher
