#pragma once
// The plan -> what one node's agent is told. Called by launch.cc for each local node.

#include <memory>
#include <string>
#include <vector>

#include "agent/node/agent.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/guard/scratch.h"

namespace ddprun::launcher {

// What every node of this machine shares: the plan, and what was made to carry it out.
struct NodeContext : LaunchPlan {
  std::string token = {};
  std::string started_utc = {};
  std::string report_folder = {};  // For what --report and --report-html need.
  std::string watch_folder = {};   // For those that watch, and for the history; empty: neither.
  bool asks_ranks = false;         // Where they are; PyTorch programs answer.
  std::string ranks_folder = {};   // Where they listen; empty: nobody is asked.
  std::string preload = {};        // AgentOptions::preload.
  agent::LaunchedJob job = {};
  std::vector<std::string> places = {};  // Of the run's temporary folders.
  std::string error_folder = {};         // For error files alone; empty: there are none.
};

// Whether error files are all that is written: no log folder was asked for.
bool wants_error_folder(const Options& options);

// Makes what the run needs, as `folders` has planned it, and tells `context`. `hosts`: a daemon
// too.
Result<void> make_folders(RunFolders& folders, NodeContext& context, bool hosts);

// "the agent", "the agent of node 1".
std::string agent_name(const NodeContext& context, int index);

// What an agent leaves for the history; only with a watch_folder.
std::string ending_file(const NodeContext& context, int index);

// The verdict of a node whose agent was killed and could not write it.
void write_agent_killed(const NodeContext& context, rendezvous::Verdict::Kind kind, int exit_code,
                        const std::string& text);

// `index` counts the nodes of this machine.
agent::AgentOptions agent_options(const NodeContext& context, int index);

// Runs the node; for a process of its own. Returns its exit status.
int run_node(const NodeContext& context, int index);

}  // namespace ddprun::launcher
