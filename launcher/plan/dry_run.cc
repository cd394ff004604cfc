#include "launcher/plan/dry_run.h"

#include <algorithm>
#include <functional>
#include <map>

#include "common/text/display.h"
#include "common/text/figures.h"
#include "common/text/words.h"

namespace ddprun::launcher {
namespace {

constexpr int kWorkersShown = 64;
constexpr const char* kLater = "(given when the nodes have met)";

std::string range_text(int first, int count) {
  const std::string start = std::to_string(first);
  return count == 1 ? start : start + "-" + std::to_string(first + count - 1);
}

// The node rank of the node `index` of this machine; std::nullopt if it is unknown before all have
// met.
std::optional<int> node_rank_of(const RendezvousPlan& plan, int index) {
  if (plan.nnodes.max == 1) return 0;
  if (plan.local_nodes > 1) return plan.others_may_come ? std::nullopt : std::optional(index);
  return plan.node_rank;
}

std::string meeting_text(const RendezvousPlan& plan) {
  static constexpr const char* kModes[] = {"in this process (no other node can come)",
                                           "hosted by this node at ", "joined at "};
  std::string text = kModes[static_cast<int>(plan.mode)];
  return plan.mode == RendezvousPlan::Mode::kStandalone ? text : text + to_string(plan.endpoint);
}

std::string workers_text(const std::string& count) {
  return count + (count == "1" ? " worker" : " workers");
}

// "1, here", "2, 1 of them here", "2 to 4, 1 of them here".
std::string count_text(const RendezvousPlan& plan) {
  const NodeRange& nodes = plan.nnodes;
  std::string text = std::to_string(nodes.min);
  if (nodes.min != nodes.max) text += " to " + std::to_string(nodes.max);
  const bool all_here = nodes.max == plan.local_nodes && nodes.min == nodes.max;
  return text + (all_here ? ", here" : ", " + std::to_string(plan.local_nodes) + " of them here");
}

std::string node_line(const std::optional<int>& node_rank, const std::string& where, int workers) {
  const std::string name = node_rank ? "node " + std::to_string(*node_rank) : "one node";
  const std::string ranks =
      node_rank ? (workers == 1 ? "rank " : "ranks ") + range_text(*node_rank * workers, workers)
                : "its ranks " + std::string(kLater);
  return "  " + padded(name + " ", 9) + padded(where + " ", 24) +
         padded(workers_text(std::to_string(workers)) + " ", 14) + ranks + "\n";
}

// Names all nodes if the scheduler gave their names, else those of this machine.
std::string nodes_text(const LaunchPlan& run) {
  std::string text;
  const auto& names = run.options.node_names;
  const bool all_known = run.plan.nnodes.min == run.plan.nnodes.max;
  if (!names.empty() && all_known) {
    for (int i = 0; i < static_cast<int>(names.size()); ++i) {
      const bool here = run.plan.node_rank == i;
      const std::string where = names[static_cast<std::size_t>(i)] + (here ? " (here)" : "");
      text += node_line(i, where, run.local_world_size);
    }
    return text;
  }
  for (int i = 0; i < run.plan.local_nodes; ++i) {
    text += node_line(node_rank_of(run.plan, i), run.host_name + " (here)", run.local_world_size);
  }
  return text;
}

agent::RankFacts facts_of(const LaunchPlan& run, int node_rank, int local_rank) {
  agent::RankFacts facts;
  facts.local_rank = local_rank;
  facts.local_world_size = run.local_world_size;
  facts.group_rank = node_rank;
  facts.group_world_size = run.plan.nnodes.max;
  facts.rank = facts.role_rank = node_rank * run.local_world_size + local_rank;
  facts.world_size = facts.role_world_size = run.plan.nnodes.max * run.local_world_size;
  facts.role = run.options.role;
  facts.max_restarts = run.options.max_restarts;
  facts.run_id = run.run_id;
  const bool first = node_rank == 0 && !run.plan.node_address.empty();
  facts.master_addr = first ? run.plan.node_address : "(the first node's address)";
  if (const auto& listens = run.plan.store_listen_host; first && listens) {
    facts.master_addr = listens->empty() ? "127.0.0.1" : *listens;
  }
  facts.master_port = run.plan.store_port.value_or(0);
  if (run.plan.store_at_endpoint) {
    facts.master_addr = run.plan.store_address;
    facts.master_port = *run.plan.endpoint.port;
  }
  return facts;
}

using Column = std::vector<std::string>;  // One value per worker.

// The variables of the workers of a node in addition to our own environment.
std::map<std::string, Column> given_to_workers(const LaunchPlan& run,
                                               const agent::Environment& parent,
                                               const std::optional<int>& node) {
  std::map<std::string, Column> given;
  agent::WorkerContext context;
  context.error_file = "(in the log folder)";
  context.virtual_local_rank = run.options.virtual_local_rank;
  context.shares_machine = run.plan.local_nodes > 1;
  for (const GivenOption& option : run.options.given) {
    if (option.flag == "--signals-to-handle") context.signals_to_handle = *option.value;
  }
  for (int i = 0; i < run.local_world_size; ++i) {
    const bool is_first = run.plan.local_nodes == 1 || node.value_or(0) == 0;
    const bool has_stdin = is_first && run.options.stdin_for.has(i);
    context.extra = {has_stdin ? "DDPRUN_STDIN=1" : "DDPRUN_STDIN=0"};
    if (const auto& memory = run.options.memory_folder) {
      std::ranges::move(agent::memory_variables("(made for the run)", memory->bytes),
                        std::back_inserter(context.extra));
    }
    for (const std::string& entry :
         worker_environment(facts_of(run, node.value_or(0), i), context, parent)) {
      if (std::find(parent.begin(), parent.end(), entry) != parent.end()) continue;
      const std::size_t equals = entry.find('=');
      given[entry.substr(0, equals)].push_back(entry.substr(equals + 1));
    }
  }
  if (!run.plan.store_port && !run.plan.store_at_endpoint) given["MASTER_PORT"] = {"(a free port)"};
  if (const auto ras = given.find("NCCL_RAS_ADDR"); ras != given.end()) {
    ras->second = {"localhost:(a port of the run's own)"};  // Derived from other variables.
  }
  if (node) return given;
  for (const char* name : {"RANK", "ROLE_RANK", "GROUP_RANK", "MASTER_ADDR"})
    given[name] = {kLater};
  return given;
}

// Of --memory-folder; empty if there is none.
std::string memory_line(const LaunchPlan& run) {
  const auto& memory = run.options.memory_folder;
  if (!memory) return "";
  const bool copies = memory->copies && run.plan.mode != RendezvousPlan::Mode::kStandalone;
  std::string text = "memory:      a folder of " + memory_text(memory->bytes) + " a node in " +
                     (memory->at.empty() ? "/dev/shm" : memory->at);
  if (copies) text += ", copied to another node";
  return text + "\n";
}

bool is_equal_for_all(const Column& column) {
  return std::adjacent_find(column.begin(), column.end(), std::not_equal_to<>()) == column.end();
}

std::string environment_text(const LaunchPlan& run, const agent::Environment& parent,
                             const std::optional<int>& node) {
  const auto given = given_to_workers(run, parent, node);
  std::string text;
  for (const auto& [name, column] : given) {
    if (is_equal_for_all(column)) text += "  " + name + "=" + column.front() + "\n";
  }
  const int shown = std::min(run.local_world_size, kWorkersShown);
  for (int i = 0; i < shown && run.local_world_size > 1; ++i) {
    text += "  worker " + std::to_string(i) + ":";
    for (const auto& [name, column] : given) {
      const auto place = static_cast<std::size_t>(i);
      if (!is_equal_for_all(column) && place < column.size()) {
        text += " " + name + "=" + column[place];
      }
    }
    text += "\n";
  }
  const int more = run.local_world_size - shown;
  return more > 0 ? text + "  and " + std::to_string(more) + " more\n" : text;
}

std::string carried_text(const Options& options, const Environment& environment) {
  std::string text = "environment that is carried there:\n";
  for (const std::string& entry : carried_environment(options, environment)) {
    text += "  " + entry + "\n";
  }
  return text;
}

}  // namespace

std::string dry_run_text(const LaunchPlan& run, const agent::Environment& parent) {
  const RendezvousPlan& plan = run.plan;
  std::string text = "rendezvous:  " + meeting_text(plan) + "\n";
  if (!run.options.scheduler.empty()) text += "started by:  " + run.options.scheduler + "\n";
  text += "nodes:       " + count_text(plan) + "\n" + nodes_text(run);
  text += "workers:     " + std::to_string(run.local_world_size) + " a node, local " +
          (run.local_world_size == 1 ? "rank 0" : "ranks 0 to ") +
          (run.local_world_size == 1 ? "" : std::to_string(run.local_world_size - 1));
  if (run.options.spares > 0) text += ", and " + number_of(run.options.spares, "spare");
  text += "\n" + memory_line(run) + "command:     " + shell_line(run.command) + "\n";
  for (int i = 0; i < plan.local_nodes; ++i) {
    const auto node = node_rank_of(plan, i);
    text += "environment of the workers of " +
            (node ? "node " + std::to_string(*node) : std::string("this node")) +
            ", besides ddprun's own:\n" + environment_text(run, parent, node);
  }
  return text;
}

std::string dry_run_of_hosts(const Options& options, const Environment& environment,
                             const std::vector<std::vector<std::string>>& commands) {
  HostsMeeting meeting;
  meeting.nodes = static_cast<int>(options.hosts.size());
  meeting.endpoint = options.rdzv_endpoint.value_or(Endpoint{options.hosts.front().name, {}});
  meeting.run_id = options.rdzv_id.value_or("(a new one)");
  std::string text = "rendezvous:  at " + endpoints_text(options, meeting) +
                     (meeting.endpoint.port ? "" : ", a port from 29400 on") + "\n";
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    const HostEntry& host = options.hosts[i];
    const auto argv = node_argv(options, meeting, host, static_cast<int>(i));
    text += "node " + std::to_string(i) + ":      " + ssh_target(host) + ", " +
            workers_text(host.workers ? std::to_string(*host.workers)
                                      : to_string(options.nproc_per_node)) +
            "\n  by:        " +
            (commands[i].empty() ? "this machine, without ssh" : shell_line(commands[i])) +
            "\n  runs:      " + shell_line(argv) + "\n";
  }
  return text + carried_text(options, environment);
}

std::string dry_run_of_discovery(const Options& options, const Environment& environment,
                                 const HostsMeeting& meeting) {
  const HostEntry any{.name = "HOST", .user = {}, .workers = {}};
  std::string text = "rendezvous:  at " + endpoints_text(options, meeting) + "\n";
  text += "nodes:       " + to_string(*options.nnodes) + ", on hosts that " +
          shell_line(options.host_discovery) + " prints\n";
  text += "each runs:   " + shell_line(node_argv(options, meeting, any, std::nullopt)) + "\n";
  return text + carried_text(options, environment);
}

}  // namespace ddprun::launcher
