#pragma once
// The sentences of a report: what a ledger shows, in words. Each claims only what was measured.
// Pure. Used by account.cc.

#include <string>
#include <vector>

#include "rendezvous/ledger/losses.h"

namespace ddprun::rendezvous {

struct Findings {
  struct Help {
    TimeParts::Time saving{0};  // Over ranks.
    std::string text;
  };
  std::string incidents;   // Over the table of incidents.
  std::string ribbon;      // Over the picture of all places.
  std::vector<Help> help;  // What would save most, the most first.
};

// `stopped`: a person or a scheduler has ended the run, which is no failure.
Findings findings(const RunLedger& ledger, const std::vector<RunLedger::Row>& rows,
                  const std::vector<IncidentCost>& losses, TimePoint now, bool stopped = false);

}  // namespace ddprun::rendezvous
