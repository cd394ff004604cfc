#pragma once
// The account of a run as JSON, schema "ddprun.report/1" (docs/ledger.md): what --report-html puts
// into its page, and /report answers. Pure.

#include <optional>
#include <string>

#include "rendezvous/ledger/run_ledger.h"

namespace ddprun::rendezvous {

// What the account contains beside the ledger.
struct AccountHead {
  std::string run_id;
  int min_nodes = 0, max_nodes = 0;
  int max_restarts = 0;
  int restarts = 0;
  int rounds = 0;
  std::optional<Verdict> verdict{};
};

std::string account_json(const RunLedger& ledger, const AccountHead& head, TimePoint now);

}  // namespace ddprun::rendezvous
