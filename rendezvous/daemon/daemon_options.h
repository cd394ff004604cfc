#pragma once
// The command line of the daemon: its table of options, and the DaemonOptions that it becomes.
// Called by main.cc first of all.

#include <string>
#include <variant>

#include "common/error.h"
#include "rendezvous/daemon/service.h"

namespace ddprun::rendezvous {

// Or the text of --help or --version. A failure is one sentence for the user; exit code 2.
Result<std::variant<DaemonOptions, std::string>> parse_daemon(int argc, const char* const* argv);

}  // namespace ddprun::rendezvous
