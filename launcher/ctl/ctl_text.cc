#include "launcher/ctl/ctl_text.h"

#include <vector>

#include "common/text/terminal_text.h"
#include "launcher/watch/screen_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::DaemonStatus;
using rendezvous::NodeStatus;
using rendezvous::RunStatus;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string seconds(Milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string wanted_nodes(const RunStatus& run) {
  const std::string max = std::to_string(run.nnodes_max);
  return run.nnodes_min == run.nnodes_max ? max : std::to_string(run.nnodes_min) + ":" + max;
}

Row run_row(const RunStatus& run) {
  return {plain(run.run_id),
          run.state,
          std::to_string(run.round),
          std::to_string(run.restart_count) + " of " + std::to_string(run.max_restarts),
          std::to_string(run.nodes.size()) + " of " + wanted_nodes(run),
          std::to_string(run.world_size),
          plain(first_line(run.waiting_for))};
}

Row node_row(const RunStatus& run, const NodeStatus& node) {
  const bool seated = node.group_rank >= 0;
  const std::string ranks = std::to_string(node.base_rank) + "-" +
                            std::to_string(node.base_rank + node.local_world_size - 1);
  return {plain(run.run_id),    plain(node.host),
          plain(node.id),       plain(node.address),
          node.phase,           seated ? std::to_string(node.group_rank) : "-",
          seated ? ranks : "-", seconds(node.silent) + " ago"};
}

}  // namespace

std::string runs_text(const DaemonStatus& status) {
  if (status.runs.empty()) return "no runs\n";
  std::vector<Row> rows = {{"RUN", "STATE", "ROUND", "RESTARTS", "NODES", "WORKERS", "NOW"}};
  for (const RunStatus& run : status.runs) rows.push_back(run_row(run));
  return aligned(rows);
}

std::string nodes_text(const DaemonStatus& status) {
  std::vector<Row> rows = {
      {"RUN", "HOST", "NODE", "ADDRESS", "PHASE", "GROUP_RANK", "RANKS", "HEARD"}};
  for (const RunStatus& run : status.runs) {
    for (const NodeStatus& node : run.nodes) rows.push_back(node_row(run, node));
  }
  return rows.size() == 1 ? "no nodes\n" : aligned(rows);
}

std::string run_text(const RunStatus& run) {
  std::string text = runs_text({{run}});
  if (run.left) text += "time left: " + seconds(*run.left) + "\n";
  if (run.verdict) {
    text += "verdict: " + run.verdict->kind + ", exit code " +
            std::to_string(run.verdict->exit_code) + "\n";
    // Several lines of last words, each on its own.
    std::string words = without_escapes(run.verdict->text) + "\n";
    for (std::size_t end; (end = words.find('\n')) != std::string::npos;) {
      text += "  " + plain(words.substr(0, end)) + "\n";
      words.erase(0, end + 1);
    }
  }
  return text + "\n" + nodes_text({{run}});
}

}  // namespace ddprun::launcher
