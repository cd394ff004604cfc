#pragma once
// `ddprunctl debug`: what PyTorch's own debug handlers say of a rank on this machine. torch serves
// them at ports that anyone may use; here it serves them at a socket in the run's temporary folder
// (python/startup/ddprun_watch/_debug.py). Called by ctl_main.cc.

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

// Whether `handler` may stand in a request: a name, and after "?" parameters, as in a URL.
bool is_handler(const std::string& handler);

// Prints the answer: for a terminal without what that would obey, else as it is.
Result<void> print_debug(const DebugQuestion& question);

}  // namespace ddprun::launcher
