#pragma once
// `ddprunctl logs`: the end of the output of workers on this machine, while they run and
// afterwards. Called by ctl_main.cc.

#include <string>

#include "common/error.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

struct LogsOptions {
  std::string run;      // An id or a number of the history; empty: the last run.
  int rank = -1;        // -1: all.
  bool follow = false;  // Continue until the run ends.
};

// Standard output of workers goes to standard output, and standard error to standard error.
Result<void> print_logs(const LogsOptions& options);

// The run for a word of the command line; a failure names the existing ones.
Result<PastRun> named_run(const std::string& word);

}  // namespace ddprun::launcher
