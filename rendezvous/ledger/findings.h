#pragma once
// The sentences of a report: what a ledger shows, in words. Each claims only what was measured.
// Pure. Used by account.cc.

#include <string>
#include <vector>

#include "common/ledger/place_ledger.h"
#include "rendezvous/ledger/run_ledger.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// What each incident of a run cost, found in the spans of its places. Pure. Used by account.cc.

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

struct Findings {
  struct Help {
    TimeParts::Time saving{0};  // Over ranks.
    std::string text;
  };
  std::string incidents;   // Over the table of incidents.
  std::string ribbon;      // Over the picture of all places.
  std::vector<Help> help;  // What would save most, the most first.
};

// `stopped`: a person or a scheduler has ended the run, which is not a failure.
Findings findings(const RunLedger& ledger, const std::vector<RunLedger::Row>& rows,
                  const std::vector<IncidentCost>& losses, TimePoint now, bool stopped = false);

// The ranks of a run as its ledger knows them, for those that watch it. Pure. Used by the
// Coordinator, and by an agent for its own node.

// Adds to each node of `run` what `ledger` has of its places.
void add_ranks(RunStatus& run, const RunLedger& ledger, TimePoint now);

// Adds how far the run is and how its time was spent.
void add_ledger(RunStatus& run, const RunLedger& ledger, TimePoint now);

}  // namespace ddprun::rendezvous
