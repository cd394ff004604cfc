#pragma once
// `ddprun --report` and --report-html: what workers and the agent have left in a folder of this
// node becomes a table, and a page. Called by launch.cc.

#include <string>

#include "common/error.h"
#include "launcher/page/report_page.h"

namespace ddprun::launcher {

inline constexpr const char* kReportVariable = "DDPRUN_REPORT_DIR";  // Names it to the workers.

// What the agent leaves there: the run's account, and the sums of its ledger.
inline constexpr const char* kAccountFile = "account";
inline constexpr const char* kLedgerFile = "ledger";

void print_report(const std::string& folder);  // To standard output.

// Nobody has sent an account: nothing is written, and false is returned.
Result<bool> write_report_page(const std::string& folder, const std::string& path,
                               const PageFacts& facts);

}  // namespace ddprun::launcher
