#pragma once
// `ddprunctl health`: whether the agents of the runs on this machine answer. For probes, which have
// no token: it queries this user's agents here, and no daemon. Called by ctl_main.cc.

#include <string>
#include <vector>

#include "common/error.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

// What the agents of one run in progress answered. There may be none: as the run begins, or once
// this node has left a run whose daemon it still hosts.
struct RunHealth {
  std::string run_id;
  std::string mute;  // A sentence about those that do not answer; or empty.
  std::vector<rendezvous::RunStatus> answers;  // Of the others.
};

// One line for each run, or why this machine's part of it is not well. Pure.
Result<std::string> health_text(const std::vector<RunHealth>& runs, const std::string& run_id);

// Queries the agents of the run `run_id`, or of all runs of this user here; takes at most 5 s a
// run.
Result<std::string> health_of_this_machine(const std::string& run_id);

}  // namespace ddprun::launcher
