#pragma once
// `ddprunctl top`: the screen of top_screen.h, over and over, with keys; or once. Called by
// ctl_main.cc.

#include <functional>
#include <string>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

struct TopOptions {
  bool once = false;  // So, too, where no screen can be redrawn.
  bool json = false;  // The same as `once`, as a daemon's status.
  Milliseconds interval{2'000};
};

using StatusSource = std::function<Result<rendezvous::DaemonStatus>()>;

// The runs of this user on this machine whose id is `run_id`; empty: all. As their agents know
// them.
Result<rendezvous::DaemonStatus> status_of_this_machine(const std::string& run_id);

Result<void> run_top(const TopOptions& options, const StatusSource& source);

}  // namespace ddprun::launcher
