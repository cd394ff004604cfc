#pragma once
// What each incident of a run cost, found in the spans of its places. Pure. Used by account.cc.

#include <vector>

#include "common/ledger/place_ledger.h"
#include "rendezvous/ledger/run_ledger.h"

namespace ddprun::rendezvous {

// A row with its spans, in seconds since the run began.
struct DrawnRow {
  const RunLedger::Row* row = nullptr;
  std::vector<TimeSpan> spans{};
};
std::vector<DrawnRow> draw(const std::vector<RunLedger::Row>& rows, TimeParts::Time wall);

struct IncidentCost {
  TimeParts::Time back{0};  // From the incident to the next step of the last place; 0: none came.
  TimeParts::Time lost{0};  // The most work that a place lost.
  TimeParts::Time cost{0};  // Lost work and restart, over places.
};
// In the order of the incidents, which is that of time. A span is the cost of the last incident
// before its end.
std::vector<IncidentCost> losses(const std::vector<Incident>& incidents,
                                 const std::vector<DrawnRow>& rows, const RunLedger& ledger);

}  // namespace ddprun::rendezvous
