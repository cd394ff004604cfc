#pragma once
// `ddprun --report`: a table made of the summaries that workers leave in a folder of this node.
// Called by main.cc.

#include <string>

namespace ddprun::launcher {

inline constexpr const char* kReportVariable = "DDPRUN_REPORT_DIR";  // Names it to the workers.

void print_report(const std::string& folder);  // To standard output.

}  // namespace ddprun::launcher
