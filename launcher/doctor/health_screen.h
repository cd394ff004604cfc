#pragma once
// The report as text, with or without colours, fitted to a width. Pure.

#include "launcher/doctor/health_report.h"

namespace ddprun::doctor {

struct Style {
  bool colours = false;
  bool utf8 = true;
  int width = 0;         // Columns; 0: any.
  bool verbose = false;  // Good rows of several nodes, too.
};

std::string screen(const HealthReport& report, const Style& style);

// Under --preflight: the sentences that a user should see before a run, worst first; empty if all
// is well.
std::vector<std::string> warnings_of(const HealthReport& report, Status least);

}  // namespace ddprun::doctor
