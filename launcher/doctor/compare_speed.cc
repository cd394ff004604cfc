// Which node is slower than its peers: every rank of a run waits for it.

#include <algorithm>
#include <functional>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/compare.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
namespace {

// Slower than others by so much is no chance: the best of many short pieces is compared, which
// other load hardly touches.
constexpr double kSlowCompute = 1.8;
constexpr double kSlowMemory = 4;  // Neighbours share it.

struct Measure {
  std::string_view name;
  Real fact;
  double slow;
  bool more_is_better;
  std::string (*text)(double);
};

std::string rate_text(double rate) { return number_text(rate) + " GB/s"; }

constexpr Measure kMeasures[] = {
    {"computing", fact::kChunkMs, kSlowCompute, false, ms_text},
    {"memory speed", fact::kMemoryGbS, kSlowMemory, true, rate_text},
};

// Of two the better one.
double typical(std::vector<double> values, bool more_is_better) {
  if (more_is_better)
    std::sort(values.begin(), values.end(), std::greater<>());
  else
    std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

void compare(const Measure& measure, const Nodes& nodes, Rows& rows) {
  std::vector<double> known;
  for (const NodeFacts& node : nodes) {
    if (const auto value = node.facts.get(measure.fact)) known.push_back(*value);
  }
  if (known.size() < 2) return;
  const double peers = typical(known, measure.more_is_better);
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const auto value = node.facts.get(measure.fact);
    if (!value) {
      cells.push_back({});
      continue;
    }
    const bool slow =
        measure.more_is_better ? *value * measure.slow < peers : *value > peers * measure.slow;
    cells.push_back({measure.text(*value), slow ? Status::kWarn : Status::kOk});
  }
  Row row = row_of(std::string(measure.name), std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note =
        "others: " + measure.text(peers) + "; a quota, a hot processor, a neighbour?";
    row.finding.cure = "top";
  }
  rows.push_back(std::move(row));
}

}  // namespace

void compare_speed(const Nodes& nodes, Rows& rows) {
  for (const Measure& measure : kMeasures) compare(measure, nodes, rows);
}

}  // namespace ddprun::doctor
