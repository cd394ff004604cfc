#pragma once
// Options and plan -> what one node's agent is told. Called by main for each local node.

#include <memory>
#include <string>
#include <vector>

#include "agent/node/agent.h"
#include "launcher/options/options.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/plan.h"
#include "launcher/run/scratch.h"

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
  std::string cgroup = {};                     // The job's; empty where there can be none.
  std::shared_ptr<agent::Roster> roster = {};  // Of the job's workers.
  std::vector<std::string> places = {};        // Of the run's temporary folders.
  std::string error_folder = {};               // For error files alone; empty: there are none.
};

// Whether error files are all that is written: no log folder was asked for.
bool wants_error_folder(const Options& options);

// Makes what the run needs, as `folders` has planned it, and tells `context`. `hosts`: a daemon
// too.
Result<void> make_folders(RunFolders& folders, NodeContext& context, bool hosts);

// "the agent", "the agent of node 1".
std::string agent_name(const NodeContext& context, int index);

// The verdict of a node whose agent was killed and could not write it.
void write_agent_killed(const NodeContext& context, rendezvous::Verdict::Kind kind, int exit_code,
                        const std::string& text);

// `index` counts the nodes of this machine.
agent::AgentOptions agent_options(const NodeContext& context, int index);

// Runs the node; for a process of its own. Returns its exit status.
int run_node(const NodeContext& context, int index);

}  // namespace ddprun::launcher
