#include "launcher/doctor/subject.h"

#include <algorithm>
#include <map>

#include "common/assert.h"

namespace ddprun::doctor {

const std::vector<Subject>& all_subjects() {
  static const std::vector<Subject> kSubjects = {
      limits_subject(),    storage_subject(), cpu_subject(),   versions_subject(),
      leftovers_subject(), program_subject(), speed_subject(), gpu_subject(),
      names_subject(),     network_subject(), links_subject()};
  return kSubjects;
}

Findings judge(const Subject& subject, const Check& check, const Facts& facts, const Need& need) {
  Findings findings;
  const std::string why = subject.probe ? facts.why(subject.probe->name) : "";
  if (!why.empty())
    findings = {{.status = Status::kUnknown, .value = "not measured", .note = why}};
  else
    findings = check.judge(facts, need);
  DDPRUN_ASSERT(!findings.empty());
  for (Finding& finding : findings) {
    if (finding.name.empty()) finding.name = check.name;
  }
  return findings;
}

Findings not_measured() { return {{.status = Status::kUnknown, .value = "not measured"}}; }

Row row_of(std::string name, std::vector<Cell> cells) {
  DDPRUN_ASSERT(!cells.empty());
  Row row{.finding = {.name = std::move(name)}, .cells = std::move(cells)};
  const auto worst =
      std::max_element(row.cells.begin(), row.cells.end(),
                       [](const Cell& a, const Cell& b) { return a.status < b.status; });
  row.finding.status = worst->status;
  row.finding.value = worst->value;
  return row;
}

std::string usual(const std::vector<std::string>& values) {
  std::map<std::string, std::size_t> counts;
  std::size_t known = 0;
  std::string first;
  for (const std::string& value : values) {
    if (value.empty()) continue;
    if (first.empty()) first = value;
    ++counts[value];
    ++known;
  }
  for (const auto& [value, count] : counts) {
    if (2 * count > known) return value;
  }
  return first;
}

std::vector<Cell> cells_of(const std::vector<std::string>& values, Status if_other) {
  const std::string most = usual(values);
  std::vector<Cell> cells;
  for (const std::string& value : values) {
    const bool other = !value.empty() && value != most;
    cells.push_back({value, other ? if_other : Status::kOk});
  }
  return cells;
}

bool any_known(const std::vector<std::string>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](const auto& value) { return !value.empty(); });
}

Rows compare_equal(const Nodes& nodes, const Equal& equal) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) values.push_back(node.facts.text(equal.fact));
  if (!any_known(values)) return {};
  Row row = row_of(equal.name, cells_of(values, equal.if_other));
  if (row.finding.status > Status::kSkipped) {
    row.finding.note = "usually " + usual(values);
    row.finding.cure = equal.cure;
  }
  return {row};
}

}  // namespace ddprun::doctor
