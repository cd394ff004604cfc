#include "launcher/ctl/ctl_text.h"

#include <vector>

#include "common/text/display.h"
#include "launcher/watch/top_screen.h"

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

TableRow run_row(const RunStatus& run) {
  return {cell_text(run.run_id),
          run.state,
          std::to_string(run.round),
          std::to_string(run.restart_count) + " of " + std::to_string(run.max_restarts),
          std::to_string(run.nodes.size()) + " of " + wanted_nodes(run),
          std::to_string(run.world_size),
          cell_text(first_line(run.waiting_for))};
}

TableRow node_row(const RunStatus& run, const NodeStatus& node) {
  const bool seated = node.group_rank >= 0;
  const int last = node.base_rank + node.local_world_size - 1;
  const std::string ranks =
      std::to_string(node.base_rank) + (last > node.base_rank ? "-" + std::to_string(last) : "");
  return {cell_text(run.run_id),
          cell_text(node.host),
          cell_text(node.id),
          cell_text(node.address),
          node.phase,
          seated ? std::to_string(node.group_rank) : "-",
          seated ? ranks : "-",
          seconds(node.silent) + " ago"};
}

}  // namespace

std::string runs_text(const DaemonStatus& status, const ScreenStyle& style) {
  if (status.runs.empty()) return "no runs\n";
  const std::vector<TableColumn> columns = {{.name = "RUN", .may_be_clipped = true},
                                            {"STATE", 0},
                                            {"ROUND", 1},
                                            {"RESTARTS", 3},
                                            {"NODES", 4},
                                            {"WORKERS", 2},
                                            {"NOW", 0}};
  std::vector<TableRow> rows;
  for (const RunStatus& run : status.runs) rows.push_back(run_row(run));
  return table_text(columns, rows, style);
}

std::string nodes_text(const DaemonStatus& status, const ScreenStyle& style) {
  const std::vector<TableColumn> columns = {{.name = "RUN", .may_be_clipped = true},
                                            {.name = "HOST", .may_be_clipped = true},
                                            {"NODE", 2},
                                            {"ADDRESS", 3},
                                            {"PHASE", 0},
                                            {"GROUP_RANK", 1},
                                            {"RANKS", 5},
                                            {"HEARD", 4}};
  std::vector<TableRow> rows;
  for (const RunStatus& run : status.runs) {
    for (const NodeStatus& node : run.nodes) rows.push_back(node_row(run, node));
  }
  return rows.empty() ? "no nodes\n" : table_text(columns, rows, style);
}

std::string run_text(const RunStatus& run, const ScreenStyle& style) {
  std::string text = runs_text({{run}}, style);
  if (run.left) text += "time left: " + seconds(*run.left) + "\n";
  if (run.verdict) {
    text += "verdict: " + run.verdict->kind + ", exit code " +
            std::to_string(run.verdict->exit_code) + "\n";
    // Several lines of last words, each on its own.
    std::string words = without_escapes(run.verdict->text) + "\n";
    for (std::size_t end; (end = words.find('\n')) != std::string::npos;) {
      text += "  " + cell_text(words.substr(0, end)) + "\n";
      words.erase(0, end + 1);
    }
  }
  return text + "\n" + nodes_text({{run}}, style);
}

}  // namespace ddprun::launcher
