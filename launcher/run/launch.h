#pragma once
// From the options to the exit status, on one machine: decide, open the endpoint, start the
// guardian, report. Called by main.cc; with --hosts by the far ends (hosts/control_stdin.h).

#include <optional>
#include <string>

#include "common/error.h"
#include "launcher/guard/guardian.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// What ddprun itself writes to stderr: as much, and in such lines, as the options say.

// Lines of this process begin with `name` from now on.
void start_log(const std::string& name, const Options& options);

// Logs why ddprun ends, and returns the exit status for it.
int fail(const Failure& failure);

// The environment that ddprun was started with, for reading options.

// The token is in it, and from now on nowhere else: neither in what is forked nor in /proc.
Environment take_environment();

// `companion` is started and watched like an agent: who brings the orders of --hosts.
// Returns the exit status, or one sentence why nothing was started.
Result<int> launch(Options options, const Environment& environment,
                   std::optional<GuardedChild> companion);

}  // namespace ddprun::launcher
