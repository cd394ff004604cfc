#pragma once
// The output of ddprunctl: a daemon's status as columns for people, and that of whatif. Pure.

#include <string>

#include "launcher/watch/top_screen.h"
#include "launcher/whatif/comparison.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

// A line per run, a line per node, and everything about one run.
std::string runs_text(const rendezvous::DaemonStatus& status, const ScreenStyle& style = {});
std::string nodes_text(const rendezvous::DaemonStatus& status, const ScreenStyle& style = {});
std::string run_text(const rendezvous::RunStatus& run, const ScreenStyle& style = {});

// `ddprunctl whatif`: for people, and as JSON.
std::string whatif_text(const Compared& all, const ScreenStyle& style = {});
std::string whatif_json(const Compared& all);  // Schema "ddprun.whatif/1" (docs/whatif.md).

}  // namespace ddprun::launcher
