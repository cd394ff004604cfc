#pragma once
// Where the time of all ranks of a run went, in a few lines for the end of --report. Pure. Used by
// report.cc.

#include <string>

#include "common/ledger/time_parts.h"

namespace ddprun::launcher {

// "goodput 56.8 % of 654 rank-s ...", and a line for each part. Empty: nothing is known.
std::string ledger_text(const LedgerTotals& ledger);

}  // namespace ddprun::launcher
