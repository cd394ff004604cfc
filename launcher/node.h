#pragma once
// Options and plan -> what one node's agent is told. Called by main for each local node.

#include <string>
#include <vector>

#include "agent/agent.h"
#include "launcher/options.h"
#include "launcher/placement.h"
#include "launcher/plan.h"

namespace ddprun::launcher {

// What every node of this machine shares.
struct NodeContext {
  const Options& options;
  const Plan& plan;
  std::string host_name;
  std::string token;
  std::string run_id;
  std::vector<std::string> command;  // argv[0] resolved.
  int local_world_size = 1;
  int launcher_pid = 0;
  Placement placement = {};
  std::string cgroup = {};  // The job's; empty where there can be none.
};

// `index` counts the nodes of this machine.
agent::AgentOptions agent_options(const NodeContext& context, int index);

// Runs the node; for a process of its own. Returns its exit status.
int run_node(const NodeContext& context, int index);

}  // namespace ddprun::launcher
