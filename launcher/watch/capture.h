#pragma once
// `ddprunctl capture`: a rank of an elastic job on this machine writes a bundle of the step that it
// begins next, for `ddprun replay`. Called by ctl_main.cc.

#include <string>

#include "common/error.h"

namespace ddprun::launcher {

// A sentence about what follows. `run`: an id, or a number of the history.
Result<std::string> request_capture(const std::string& run);

}  // namespace ddprun::launcher
