#pragma once
// The plan -> the options of one node's agent. Called by launch.cc for each local node.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/node/agent.h"
#include "launcher/guard/scratch.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// Shared by all nodes of this machine: the plan, and what was made to carry it out.
struct NodeContext : LaunchPlan {
  std::string token = {};
  int store_clients_fd = -1;  // See agent::StorePlace; -1: this node joins others.
  std::string started_utc = {};
  std::string report_folder = {};  // For the input of --report and --report-html.
  std::string watch_folder = {};   // For watchers and for the history; empty: neither.
  bool queries_ranks = false;      // For their stacks; PyTorch programs answer.
  std::string ranks_folder = {};   // Where ranks listen; empty: they are not queried.
  std::string preload = {};        // AgentOptions::preload.
  int image_file = -1;             // Of KeepOptions; -1: nothing is kept.
  agent::LaunchedJob job = {};
  std::vector<std::string> places = {};         // Possible places of the run's temporary folders.
  std::vector<agent::MemoryPlace> memory = {};  // By local node; empty: there are none.
  std::string error_folder = {};                // For error files alone; empty: there are none.
  std::string imports_folder = {};  // For what programs import; empty: nothing is learned.
};

// Whether only error files are written: the user chose no log folder.
bool wants_error_folder(const Options& options);

// Makes the folders that the run needs, as planned in `folders`, and enters them in `context`.
// `hosts`: for a daemon, too.
Result<void> make_folders(RunFolders& folders, NodeContext& context, bool hosts);

// "the agent", "the agent of node 1".
std::string agent_name(const NodeContext& context, int index);

// The file of an agent for the history; only with a watch_folder.
std::string ending_file(const NodeContext& context, int index);

// Writes the verdict of a node if its agent was killed before it could.
void write_agent_killed(const NodeContext& context, rendezvous::Verdict::Kind kind, int exit_code,
                        const std::string& text);

// `index` counts the nodes of this machine.
agent::AgentOptions agent_options(const NodeContext& context, int index);

// Runs the node; call it in a process of its own. Returns its exit status; `decided` gets that as
// soon as nothing can change it.
int run_node(const NodeContext& context, int index, std::function<void(int status)> decided);

}  // namespace ddprun::launcher
