#include "rendezvous/ledger/losses.h"

#include <algorithm>

#include "common/ledger/place_ledger.h"

namespace ddprun::rendezvous {
namespace {

using Time = TimeParts::Time;
using namespace std::chrono_literals;

// An incident is noticed after its work was lost, and reported after it was noticed.
constexpr Time kNoticed = 2s;

}  // namespace

std::vector<DrawnRow> draw(const std::vector<RunLedger::Row>& rows, Time wall) {
  std::vector<DrawnRow> drawn;
  for (const RunLedger::Row& row : rows) {
    DrawnRow& here = drawn.emplace_back(DrawnRow{.row = &row});
    if (row.origin > Time{0}) here.spans.push_back({TimePart::kGone, Time{0}, row.origin});
    for (TimeSpan span : parse_time_spans(row.times.spans).value_or(std::vector<TimeSpan>())) {
      span.from = std::min(span.from + row.origin, wall);
      span.until = std::min(span.until + row.origin, wall);
      if (span.until > span.from) here.spans.push_back(span);
    }
    if (row.gone_at) here.spans.push_back({TimePart::kGone, *row.gone_at, wall});
  }
  return drawn;
}

std::vector<IncidentCost> losses(const std::vector<Incident>& incidents,
                                 const std::vector<DrawnRow>& rows, const RunLedger& ledger) {
  std::vector<IncidentCost> all(incidents.size());
  std::vector<Time> at;
  for (const Incident& incident : incidents) at.push_back(ledger.since_began(incident.at));
  for (const DrawnRow& row : rows) {
    for (const TimeSpan& span : row.spans) {
      const bool counts = span.part == TimePart::kLost || span.part == TimePart::kRestart;
      const Time known = span.part == TimePart::kLost ? span.until + kNoticed : span.until;
      const auto next = std::upper_bound(at.begin(), at.end(), known);
      if (!counts || next == at.begin()) continue;
      const auto i = static_cast<std::size_t>(next - at.begin()) - 1;
      const Time took = span.until - span.from;
      all[i].cost += took;
      if (span.part == TimePart::kLost) all[i].lost = std::max(all[i].lost, took);
      if (span.part == TimePart::kRestart) all[i].back = std::max(all[i].back, span.until - at[i]);
    }
  }
  return all;
}

}  // namespace ddprun::rendezvous
