#pragma once
// From the options to the exit status, on one machine: decide, open the endpoint, start the
// guardian, report. Called by main.cc; with --hosts by the far ends (hosts/control_stdin.h).

#include <optional>

#include "common/error.h"
#include "launcher/guard/guardian.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// `companion` is started and watched like an agent: who brings the orders of --hosts.
// Returns the exit status, or one sentence why nothing was started.
Result<int> launch(Options options, const Environment& environment,
                   std::optional<GuardedChild> companion);

}  // namespace ddprun::launcher
