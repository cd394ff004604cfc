#pragma once
// What ddprunctl shows of runs that have ended: those of this machine, and those that a daemon
// remembers. Called by ctl_main.cc.

#include <string>

#include "common/error.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/page/report_page.h"

namespace ddprun::launcher {

// Prints the history of this user on this machine, or one run of it.
Result<void> show_own_history(const CtlOptions& options);

// Writes the report of a run of that history. A failure says why there is none.
Result<void> show_own_report(const CtlOptions& options);

// The same of a daemon's answer, as text to print.
Result<std::string> daemon_history_shown(const CtlOptions& options, const std::string& answer);
Result<std::string> report_shown(const CtlOptions& options, const std::string& account,
                                 const PageFacts& facts = {});

}  // namespace ddprun::launcher
