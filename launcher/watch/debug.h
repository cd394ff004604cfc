#pragma once
// `ddprunctl debug`: the output of PyTorch's own debug handlers of a rank on this machine. torch
// serves them at ports that anyone may use; here it serves them at a socket in the run's temporary
// folder (python/startup/ddprun_watch/_debug.py). Called by ctl_main.cc.

#include <string>

#include "common/error.h"
#include "common/time.h"

namespace ddprun::launcher {

struct DebugQuestion {
  std::string run;
  int rank = 0;
  std::string handler;  // "fr_trace_json?backend=gloo"; empty: which there are.
  Milliseconds limit{60'000};
};

// Whether `handler` may be part of a request: a name, and after "?" parameters, like in a URL.
bool is_handler(const std::string& handler);

// Prints the answer: for a terminal without control characters, else unchanged.
Result<void> print_debug(const DebugQuestion& question);

}  // namespace ddprun::launcher
