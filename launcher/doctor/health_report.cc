#include "launcher/doctor/health_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/doctor/checks.h"

namespace ddprun::doctor {
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

HealthReport report_of_node(const NodeFacts& node, const Need& need) {
  HealthReport report{.hosts = {node.host}, .rows = {}};
  for (const Check& check : all_checks()) {
    for (Finding& finding : judge(check, node.facts, need)) {
      report.rows.push_back({.group = check.group, .finding = std::move(finding)});
    }
  }
  return report;
}

Status worst_of(const HealthReport& report) {
  if (report.rows.empty()) return Status::kUnknown;
  const auto worst = std::max_element(
      report.rows.begin(), report.rows.end(),
      [](const Row& a, const Row& b) { return a.finding.status < b.finding.status; });
  return worst->finding.status;
}

std::string report_json(const HealthReport& report) {
  const Status worst = worst_of(report);
  // A check with nothing to judge takes nothing from a node that is well.
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
