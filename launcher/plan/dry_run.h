#pragma once
// --dry-run: what would run where, with which command and environment. Pure; nothing is started,
// listened for or connected to. Called by run/launch.cc, hosts_run.cc and discovery_run.cc.

#include <string>
#include <vector>

#include "agent/placement/worker_environment.h"
#include "launcher/options/hosts.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// `parent` is our own environment, "NAME=value" each.
std::string dry_run_text(const LaunchPlan& run, const agent::Environment& parent);

// With --hosts. `commands` has the command that reaches each host; empty: it is this machine.
std::string dry_run_of_hosts(const Options& options, const Environment& environment,
                             const std::vector<std::vector<std::string>>& commands);

// With --host-discovery. The script is not run.
std::string dry_run_of_discovery(const Options& options, const Environment& environment,
                                 const HostsMeeting& meeting);

}  // namespace ddprun::launcher
