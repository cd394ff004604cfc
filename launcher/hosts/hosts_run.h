#pragma once
// --hosts: starts a ddprun on each host by ssh, sends it its orders, shows its output, passes
// signals on, and ends as they end. The run itself is theirs: its daemon is on the first host, and
// this process makes no decision in it. Called by main.cc instead of running a node here.

#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// Returns the exit code. A failure is a whole sentence, and nothing has been started.
Result<int> run_hosts(const Options& options, const MachineFacts& facts,
                      const Environment& environment);

}  // namespace ddprun::launcher
