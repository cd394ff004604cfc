#pragma once
// The daemon's numbers in Prometheus' text format: numbers are counted elsewhere, in plain
// integers, and become metrics when they are asked for. Names and meanings are listed in
// docs/operations.md.

#include <cstddef>
#include <map>
#include <string>

#include "common/ledger/time_parts.h"
#include "rendezvous/coordinator/counters.h"
#include "rendezvous/coordinator/sync_totals.h"
#include "rendezvous/daemon/loop_probe.h"
#include "rendezvous/daemon/process_facts.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

struct Measurement {
  DaemonStatus status;
  Counters counters;
  std::map<std::string, SyncTotals> sync;       // By run id.
  std::map<std::string, LedgerTotals> ledgers;  // By run id.
  RefusalCounts refused;                        // By everybody together.
  std::size_t connections = 0;
  std::size_t handshakes = 0;
  std::size_t http_connections = 0;
  bool has_journal = false;
  LagCounts lag;
  ProcessFacts process;
};

std::string metrics_text(const Measurement& measured);

}  // namespace ddprun::rendezvous
