#include "launcher/doctor/health_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "common/assert.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {
namespace {

std::string scaled(std::int64_t bytes, double step, const std::array<const char*, 5>& units) {
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= step && unit + 1 < units.size()) {
    amount /= step;
    ++unit;
  }
  return number_text(amount) + " " + units[unit];
}

struct Named {
  std::string_view name;
  int exit_code;
};

// By Status.
constexpr std::array<Named, 5> kStatuses = {
    {{"ok", 0}, {"skipped", 0}, {"warn", 1}, {"unknown", 3}, {"fail", 2}}};

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  return scaled(bytes, 1000, {"B", "kB", "MB", "GB", "TB"});
}

std::string limit_text(std::int64_t bytes) {
  if (bytes < 0) return "unlimited";
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string number_text(double number) {
  char text[32];
  const double size = std::abs(number);
  const int decimals = size >= 99.95 || size == std::floor(size) ? 0 : size >= 0.1 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

std::string ms_text(double milliseconds) {
  if (std::abs(milliseconds) >= 1000) return number_text(milliseconds / 1000) + " s";
  return number_text(milliseconds) + " ms";
}

std::string_view to_string(Status status) {
  return kStatuses[static_cast<std::size_t>(status)].name;
}

int exit_code_of(Status status) { return kStatuses[static_cast<std::size_t>(status)].exit_code; }

HealthReport report_of_node(const NodeFacts& node, const Need& need) {
  HealthReport report{.hosts = {node.host}, .rows = {}};
  for (const Subject& subject : all_subjects()) {
    for (const Check& check : subject.checks) {
      for (Finding& finding : judge(subject, check, node.facts, need)) {
        report.rows.push_back({.group = subject.group, .finding = std::move(finding)});
      }
    }
  }
  return report;
}

// Several nodes.

namespace {

Rows unreachable(const Nodes& nodes) {
  std::vector<Cell> cells;
  std::string sentence;
  for (const NodeFacts& node : nodes) {
    const bool lost = !node.error.empty();
    cells.push_back({lost ? "no" : "yes", lost ? Status::kFail : Status::kOk});
    if (lost && sentence.empty()) sentence = node.error;
  }
  if (sentence.empty()) return {};
  Row row = row_of("ssh", std::move(cells));
  row.finding.note = sentence;
  return {row};
}

Rows comparisons(const Nodes& nodes, const Need& need) {
  std::multimap<Section, Comparison> in_order;  // Those of a section keep the subjects' order.
  for (const Subject& subject : all_subjects()) {
    for (const Comparison& one : subject.comparisons) in_order.emplace(one.section, one);
  }
  Rows rows = unreachable(nodes);
  for (const auto& [section, comparison] : in_order) {
    for (Row& row : comparison.compare(nodes, need)) rows.push_back(std::move(row));
  }
  for (Row& row : rows) row.compared = true;
  return rows;
}

// The findings of one name on all nodes. A node may have several of them, such as leftovers: the
// worst is shown.
struct OfName {
  std::vector<Cell> cells;
  Finding worst;
};

void add_finding(OfName& row, std::size_t node, Finding finding) {
  Cell& cell = row.cells[node];
  const bool first = cell.value.empty();
  if (first || finding.status > cell.status) cell = {finding.value, finding.status};
  if (row.worst.name.empty() || finding.status > row.worst.status) row.worst = std::move(finding);
}

void add_check(const Subject& subject, const Check& check, const Nodes& nodes, const Need& need,
               Rows& rows) {
  std::vector<std::string> order;
  std::map<std::string, OfName> found;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].error.empty()) continue;
    for (Finding& finding : judge(subject, check, nodes[i].facts, need)) {
      auto [entry, is_new] = found.try_emplace(finding.name);
      if (is_new) order.push_back(finding.name);
      if (is_new) entry->second.cells.resize(nodes.size());
      add_finding(entry->second, i, std::move(finding));
    }
  }
  for (const std::string& name : order) {
    OfName& of_name = found.at(name);
    Row row = row_of(name, std::move(of_name.cells));
    row.finding = std::move(of_name.worst);
    rows.push_back(std::move(row));
  }
}

void name_nodes(const Nodes& nodes, Row& row) {
  DDPRUN_ASSERT(row.cells.size() == nodes.size());
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (row.cells[i].status != row.finding.status) continue;
    names += (names.empty() ? "on " : ", ") + nodes[i].host;
    ++count;
  }
  const bool good = row.finding.status <= Status::kSkipped;
  if (!good && count < nodes.size() && row.finding.name != "ssh") row.where = names;
}

}  // namespace

HealthReport report_of_nodes(const Nodes& nodes, const Need& need) {
  DDPRUN_ASSERT(!nodes.empty());
  HealthReport report{.hosts = {}, .rows = comparisons(nodes, need)};
  for (const NodeFacts& node : nodes) report.hosts.push_back(node.host);
  for (const Subject& subject : all_subjects()) {
    for (const Check& check : subject.checks) {
      if (check.if_several) add_check(subject, check, nodes, need, report.rows);
    }
  }
  for (Row& row : report.rows) name_nodes(nodes, row);
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const Row& a, const Row& b) {
    const Status least = Status::kSkipped;  // Good rows keep their order.
    return std::max(a.finding.status, least) > std::max(b.finding.status, least);
  });
  return report;
}

Status worst_of(const HealthReport& report) {
  if (report.rows.empty()) return Status::kUnknown;
  const auto worst = std::max_element(
      report.rows.begin(), report.rows.end(),
      [](const Row& a, const Row& b) { return a.finding.status < b.finding.status; });
  return worst->finding.status;
}

namespace {

using Json = nlohmann::json;

Json to_json(const Row& row, const std::vector<std::string>& hosts) {
  const Finding& finding = row.finding;
  Json json = {{"name", finding.name},
               {"status", std::string(to_string(finding.status))},
               {"value", finding.value}};
  if (!finding.note.empty()) json["note"] = finding.note;
  if (!finding.cure.empty()) json["cure"] = finding.cure;
  if (!row.where.empty()) json["where"] = row.where;
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    json["values"][hosts[i]] = row.cells[i].value;
    json["statuses"][hosts[i]] = std::string(to_string(row.cells[i].status));
  }
  return json;
}

}  // namespace

std::string report_json(const HealthReport& report) {
  const Status worst = worst_of(report);
  // A check with nothing to judge does not make a good node worse.
  const Status verdict = worst == Status::kSkipped ? Status::kOk : worst;
  Json json = {{"status", std::string(to_string(verdict))},
               {"exit_code", exit_code_of(worst)},
               {"nodes", report.hosts},
               {"took_ms", report.took_ms},
               {"checks", Json::array()}};
  for (const Row& row : report.rows) json["checks"].push_back(to_json(row, report.hosts));
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace ddprun::doctor
