#pragma once
// `ddprunctl logs`: the end of what workers on this machine wrote, while they run and afterwards.
// Called by ctl_main.cc.

#include <string>

#include "common/error.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

struct LogsOptions {
  std::string run;      // An id or a number of the history; empty: the last run.
  int rank = -1;        // -1: all.
  bool follow = false;  // Until the run ends.
};

// Standard output of workers goes to standard output, and standard error to standard error.
Result<void> print_logs(const LogsOptions& options);

// The run that is meant by a word of the command line; a failure names those there are.
Result<PastRun> named_run(const std::string& word);

}  // namespace ddprun::launcher
