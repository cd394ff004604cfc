#include "launcher/doctor/compare.h"

#include <algorithm>
#include <map>

#include "common/assert.h"
#include "launcher/doctor/checks.h"

namespace ddprun::doctor {
namespace {

// What the comparisons below say better.
constexpr std::string_view kCompared[] = {"clock", "program", "speed", "port"};

bool is_compared(const Check& check) {
  return std::find(std::begin(kCompared), std::end(kCompared), check.name) != std::end(kCompared);
}

// One node may have several findings of a name, as of what was left behind: the worst stands here,
// and says of how many.
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

void add_check(const Check& check, const Nodes& nodes, const Need& need, Rows& rows) {
  std::vector<std::string> order;
  std::map<std::string, OfName> found;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].error.empty()) continue;
    for (Finding& finding : judge(check, nodes[i].facts, need)) {
      auto [entry, is_new] = found.try_emplace(finding.name);
      if (is_new) order.push_back(finding.name);
      if (is_new) entry->second.cells.resize(nodes.size());
      add_finding(entry->second, i, std::move(finding));
    }
  }
  for (const std::string& name : order) {
    OfName& of_name = found.at(name);
    Row row = row_of(name, std::move(of_name.cells));
    row.group = check.group;
    row.finding = std::move(of_name.worst);
    rows.push_back(std::move(row));
  }
}

void add_unreachable(const Nodes& nodes, Rows& rows) {
  std::vector<Cell> cells;
  std::string sentence;
  for (const NodeFacts& node : nodes) {
    const bool lost = !node.error.empty();
    cells.push_back({lost ? "no" : "yes", lost ? Status::kFail : Status::kOk});
    if (lost && sentence.empty()) sentence = node.error;
  }
  if (sentence.empty()) return;
  Row row = row_of("ssh", std::move(cells));
  row.finding.note = sentence;
  row.where.clear();
  rows.push_back(std::move(row));
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

HealthReport report_of_nodes(const std::vector<NodeFacts>& nodes, const Need& need) {
  DDPRUN_ASSERT(!nodes.empty());
  HealthReport report;
  for (const NodeFacts& node : nodes) report.hosts.push_back(node.host);
  add_unreachable(nodes, report.rows);
  compare_versions(nodes, report.rows);
  compare_files(nodes, need, report.rows);
  compare_bits(nodes, report.rows);
  compare_mtu(nodes, report.rows);
  compare_clocks(nodes, report.rows);
  compare_endpoint(nodes, report.rows);
  compare_reach(nodes, report.rows);
  compare_rates(nodes, report.rows);
  compare_loss(nodes, report.rows);
  compare_speed(nodes, report.rows);
  for (Row& row : report.rows) row.compared = true;
  for (const Check& check : all_checks()) {
    if (!is_compared(check)) add_check(check, nodes, need, report.rows);
  }
  for (Row& row : report.rows) name_nodes(nodes, row);
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const Row& a, const Row& b) {
    const Status least = Status::kSkipped;  // Good rows keep their order.
    return std::max(a.finding.status, least) > std::max(b.finding.status, least);
  });
  return report;
}

}  // namespace ddprun::doctor
