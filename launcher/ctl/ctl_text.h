#pragma once
// The output of ddprunctl: a daemon's status as columns for people. Pure.

#include <string>

#include "launcher/watch/top_screen.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

// A line per run, a line per node, and everything about one run.
std::string runs_text(const rendezvous::DaemonStatus& status, const ScreenStyle& style = {});
std::string nodes_text(const rendezvous::DaemonStatus& status, const ScreenStyle& style = {});
std::string run_text(const rendezvous::RunStatus& run, const ScreenStyle& style = {});

}  // namespace ddprun::launcher
