#pragma once
// --dry-run: who would run where, with which command and environment. Pure; nothing is started,
// listened for or connected to. Called by main.cc.

#include <string>
#include <vector>

#include "agent/node/environment.h"
#include "launcher/options/hosts.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

struct DryRun {
  const Options& options;
  const Plan& plan;
  std::string host_name;
  std::string run_id;
  std::vector<std::string> command;  // argv[0] resolved.
  int local_world_size = 1;
  agent::Environment parent;  // Our own, "NAME=value" each.
};

std::string dry_run_text(const DryRun& run);

// With --hosts. `commands` has for each host what reaches it; empty: it is this machine.
std::string dry_run_of_hosts(const Options& options, const Environment& environment,
                             const std::vector<std::vector<std::string>>& commands);

}  // namespace ddprun::launcher
