#pragma once
// The ranks of a run as its ledger knows them, for those that watch it. Pure. Used by the
// Coordinator, and by an agent for its own node.

#include "rendezvous/ledger/run_ledger.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// Adds to each node of `run` what `ledger` has of its places.
void add_ranks(RunStatus& run, const RunLedger& ledger, TimePoint now);

// Adds how far the run is and how its time was spent.
void add_ledger(RunStatus& run, const RunLedger& ledger, TimePoint now);

}  // namespace ddprun::rendezvous
