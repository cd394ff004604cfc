#pragma once
// `ddprun --report` and --report-html: makes a table and a page of the files that workers and the
// agent have left in a folder of this node. Called by launch.cc.

#include <string>

#include "common/error.h"
#include "launcher/guard/guardian.h"
#include "launcher/history/history.h"
#include "launcher/page/report_page.h"
#include "launcher/run/node.h"

namespace ddprun::launcher {

// The run's record in the history of this machine (launcher/history/history.h), at its start and at
// its end. Called by launch.cc.

// "ddprun --nproc-per-node 8 train.py --epochs 3": the command line, and flags set by variables;
// only its beginning, if it is long.
std::string command_text(const Options& options);

// Keeps nothing if the run has no folder for it.
KeptRun remember_start(const NodeContext& context);

// A signal has arrived. If it is one that ends the run, the record has it from now on.
void remember_signal(KeptRun& kept, const Options& options, int signal);

// Records the end of an agent that was killed before it could.
void remember_killed(KeptRun& kept, const AgentKilled& killed, const char* kind);

// Reads what the agents have left in the run's folder, which is removed afterwards.
void collect_endings(KeptRun& kept, const NodeContext& context);

void remember_end(KeptRun& kept, const NodeContext& context, int exit_code);

inline constexpr const char* kReportVariable = "DDPRUN_REPORT_DIR";  // For the workers.

// Files of the agent in that folder: the run's account, and the sums of its ledger.
inline constexpr const char* kAccountFile = "account";
inline constexpr const char* kLedgerFile = "ledger";

void print_report(const std::string& folder);  // To standard output.

// If no account has arrived, writes nothing and returns false.
Result<bool> write_report_page(const std::string& folder, const std::string& path,
                               const PageFacts& facts);

}  // namespace ddprun::launcher
