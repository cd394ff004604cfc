#pragma once
// What a rank on this machine gives on request: `ddprunctl debug` and `ddprunctl capture`. Called
// by ctl_main.cc.

#include <string>

#include "common/error.h"
#include "common/time.h"

namespace ddprun::launcher {

// `ddprunctl debug`: the output of PyTorch's own debug handlers of a rank. torch serves them at
// ports that anyone may use; here it serves them at a socket in the run's temporary folder
// (python/startup/ddprun_watch/_debug.py).
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

// `ddprunctl capture`: a rank of an elastic job writes a bundle of the step that it begins next,
// for `ddprun replay`. A sentence about what follows. `run`: an id, or a number of the history.
Result<std::string> request_capture(const std::string& run);

}  // namespace ddprun::launcher
