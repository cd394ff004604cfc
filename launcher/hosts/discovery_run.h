#pragma once
// --host-discovery: runs the script that lists the hosts, and a node on each host by ssh, as
// HostWatch decides. The rendezvous daemon is on this machine, unless --rdzv-endpoint names
// another, so that every host may come and go. Called by main.cc instead of running a node here.

#include "launcher/options/options.h"

namespace ddprun::launcher {

// Returns the exit code. A failure is a whole sentence, and nothing has been started.
Result<int> run_discovery(Options options, const Environment& environment);

}  // namespace ddprun::launcher
