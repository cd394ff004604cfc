#include "launcher/ctl/ctl_text.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "common/text/display.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {
namespace {

using rendezvous::DaemonStatus;
using rendezvous::NodeStatus;
using rendezvous::RunStatus;

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

namespace {

using nlohmann::ordered_json;

std::string interval_text(const RunShape& shape) {
  return std::isinf(shape.interval) ? "none" : time_text(shape.interval);
}

std::string nodes_text(const RunShape& shape) {
  const std::string max = std::to_string(shape.nodes_max);
  return shape.nodes_min == shape.nodes_max ? max : std::to_string(shape.nodes_min) + ":" + max;
}

// Where a value is from, for the table and for JSON.
std::string source_text(const RunFact& fact, bool is_given) {
  if (is_given) return "given";
  if (fact.cases == 0) return "assumed";
  return "measured, " + number_of(fact.cases, "time");
}

// What the model uses of the run, a line each.
struct FactLine {
  std::string name;
  std::string value;
  std::string source;
  std::string flag = "";  // That sets it, if it is assumed.
};

std::vector<FactLine> fact_lines(const Compared& all) {
  const RunFacts& facts = all.facts;
  std::vector<FactLine> lines;
  const auto add = [&](const char* name, const std::string& value, const RunFact& fact,
                       bool is_given = false, const char* flag = "") {
    lines.push_back({name, value, source_text(fact, is_given), flag});
  };
  if (facts.step.cases > 0) lines.push_back({"a step", time_text(facts.step.value), "measured"});
  add("a failure each", time_text(all.mtbf), facts.node_mtbf, all.given.mtbf.has_value(), "--mtbf");
  add("failures that take a node", percent_text(facts.node_loss_share.value), facts.node_loss_share,
      all.given.node_loss_share.has_value(), "--lost-nodes");
  if (facts.keeps_workers) {
    add("survivors pause", time_text(facts.change.value), facts.change);
    add("a replacement starts", time_text(facts.refill.value), facts.refill);
    add("all pause as it joins", time_text(facts.growth.value), facts.growth);
  } else {
    add("a restart", time_text(facts.restart.value), facts.restart);
  }
  if (facts.node_loss_share.value > 0) {
    add("a lost node is noticed in", time_text(facts.notice.value), facts.notice);
    add("another node is there in", time_text(facts.repair.value), facts.repair,
        all.given.repair.has_value(), "--repair");
  }
  add("a checkpoint", time_text(facts.checkpoint.value), facts.checkpoint,
      all.given.checkpoint.has_value(), "--checkpoint-cost");
  return lines;
}

std::string facts_text(const Compared& all) {
  const auto lines = fact_lines(all);
  std::size_t width = 0;
  for (const FactLine& line : lines) width = std::max(width, text_columns(line.name));
  std::string text;
  for (const FactLine& line : lines) {
    const bool can_set = line.source == "assumed" && !line.flag.empty();
    text += "  " + padded(line.name, width) + right_aligned(line.value, 12) + "  " + line.source +
            (can_set ? ": " + line.flag + " sets it" : "") + "\n";
  }
  return text;
}

TableRow row_of(const Choice& answer) {
  const Expected& expected = answer.expected;
  const RunShape& shape = answer.shape;
  return {nodes_text(shape),
          std::to_string(shape.spare_nodes),
          std::to_string(shape.spares),
          interval_text(shape) + (answer.is_best ? " (best)" : ""),
          percent_text(expected.goodput),
          percent_text(expected.goodput_10) + " - " + percent_text(expected.goodput_90),
          percent_text(expected.lost),
          percent_text(expected.paused),
          percent_text(expected.waited),
          percent_text(expected.checkpoint),
          rate_text(expected.faults),
          answer.takes > 0 ? time_text(answer.takes) : "never"};
}

std::string table(const Compared& all, const ScreenStyle& style) {
  const bool has_spares = all.facts.keeps_workers;
  std::vector<TableColumn> columns = {{"NODES", 0},       {"SPARE_NODES", 8}, {"SPARES", 7},
                                      {"INTERVAL", 9},    {"GOODPUT", 0},     {"10 - 90 %", 6},
                                      {"LOST", 4},        {"RESTARTS", 3},    {"WAITING", 2},
                                      {"CHECKPOINTS", 1}, {"FAILURES", 5},    {"SAME_WORK_IN", 0}};
  std::vector<TableRow> rows;
  for (const Choice& answer : all.answers) rows.push_back(row_of(answer));
  constexpr std::size_t kSpares = 2;
  if (!has_spares) columns.erase(columns.begin() + kSpares);
  for (TableRow& row : rows) {
    if (!has_spares) row.erase(row.begin() + kSpares);
  }
  return table_text(columns, rows, style);
}

std::string head_text(const Compared& all) {
  const RunFacts& facts = all.facts;
  std::string text = "run " + cell_text(facts.run_id) + ": " + number_of(facts.ranks, "rank") +
                     " on " + number_of(facts.shape.nodes_max, "node") + ", " +
                     time_text(facts.wall) + ", " + number_of(facts.faults, "failure") + ", ";
  text += facts.has_goodput ? "goodput " + percent_text(facts.goodput) + " (by this model " +
                                  percent_text(all.modelled) + ")"
                            : "goodput not known";
  return text + "\n";
}

ordered_json fact_json(const RunFact& fact, bool is_given) {
  const char* source = is_given ? "given" : fact.cases > 0 ? "measured" : "assumed";
  return {{"value", fact.value}, {"source", source}, {"cases", fact.cases}};
}

ordered_json answer_json(const Choice& answer) {
  const Expected& expected = answer.expected;
  const RunShape& shape = answer.shape;
  ordered_json object = {{"min_nodes", shape.nodes_min},
                         {"max_nodes", shape.nodes_max},
                         {"spare_nodes", shape.spare_nodes},
                         {"spares", shape.spares}};
  if (!std::isinf(shape.interval)) object["checkpoint_interval_s"] = shape.interval;
  object["is_best_interval"] = answer.is_best;
  object["goodput"] = expected.goodput;
  object["goodput_10"] = expected.goodput_10;
  object["goodput_90"] = expected.goodput_90;
  object["lost"] = expected.lost;
  object["restarts"] = expected.paused;
  object["waiting"] = expected.waited;
  object["checkpoints"] = expected.checkpoint;
  object["failures"] = expected.faults;
  if (answer.takes > 0) object["same_work_s"] = answer.takes;
  return object;
}

}  // namespace

std::string whatif_text(const Compared& all, const ScreenStyle& style) {
  std::string text = head_text(all) + facts_text(all) + "\n";
  text += "runs of " + time_text(all.length) + ", " + std::to_string(kPlays) + " of each:\n";
  text += table(all, style);
  if (!all.sentences.empty()) text += "\n";
  const auto width = static_cast<std::size_t>(style.columns > 0 ? style.columns : 100);
  for (const std::string& sentence : all.sentences) {
    for (const std::string& line : wrapped_lines(sentence, width)) text += line + "\n";
  }
  return text;
}

std::string whatif_json(const Compared& all) {
  const RunFacts& facts = all.facts;
  ordered_json object = {
      {"schema", "ddprun.whatif/1"}, {"run", facts.run_id}, {"wall_s", facts.wall},
      {"length_s", all.length},      {"runs", kPlays},      {"keeps_workers", facts.keeps_workers},
      {"mtbf_s", all.mtbf}};
  if (facts.has_goodput) object["goodput"] = facts.goodput;
  object["goodput_by_model"] = all.modelled;
  const WhatIf& given = all.given;
  object["facts"] = {
      {"step_s", fact_json(facts.step, false)},
      {"node_mtbf_s", fact_json(facts.node_mtbf, given.mtbf.has_value())},
      {"node_loss_share", fact_json(facts.node_loss_share, given.node_loss_share.has_value())},
      {"restart_s", fact_json(facts.restart, false)},
      {"change_s", fact_json(facts.change, false)},
      {"refill_s", fact_json(facts.refill, false)},
      {"growth_s", fact_json(facts.growth, false)},
      {"notice_s", fact_json(facts.notice, false)},
      {"repair_s", fact_json(facts.repair, given.repair.has_value())},
      {"checkpoint_s", fact_json(facts.checkpoint, given.checkpoint.has_value())}};
  object["as_it_was"] = answer_json(all.as_it_was);
  object["answers"] = ordered_json::array();
  for (const Choice& answer : all.answers) object["answers"].push_back(answer_json(answer));
  if (all.best_interval) object["best_interval_s"] = *all.best_interval;
  object["daly_interval_s"] = all.daly;
  object["sentences"] = all.sentences;
  return object.dump(2, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::launcher
