#pragma once
// What the agents of this user's runs on this machine answer (agent/window/window.h). Blocks.

#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "launcher/history/history.h"

namespace ddprun::launcher {

// The whole answer to one line. Fails where nobody listens at `path`, or answers in time.
Result<std::string> ask_window(const std::string& path, const std::string& question);

// The sockets of a run's agents here, in the order of its nodes.
std::vector<std::string> windows_of(const PastRun& run);

}  // namespace ddprun::launcher
