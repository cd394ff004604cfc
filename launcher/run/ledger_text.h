#pragma once
// Where the time of all ranks of a run went, in a few lines for the end of --report. Pure. Used by
// report.cc.

#include <string>

#include "common/ledger/time_parts.h"

namespace ddprun::launcher {

// "goodput 56.8 % of 654 rank-s ...", and a line for each part. Empty: nothing is known. No line is
// wider than `width`: what the parts mean is left out, then what they are in rank-s. 0: any width.
std::string ledger_text(const LedgerTotals& ledger, std::size_t width = 0);

}  // namespace ddprun::launcher
