#pragma once
// What ddprunctl prints: a daemon's status as columns for people. Pure.

#include <string>

#include "rendezvous/run/status.h"

namespace ddprun::launcher {

std::string runs_text(const rendezvous::DaemonStatus& status);   // One line a run.
std::string nodes_text(const rendezvous::DaemonStatus& status);  // One line a node.
std::string run_text(const rendezvous::RunStatus& run);          // All that is known of one.

}  // namespace ddprun::launcher
