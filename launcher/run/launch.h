#pragma once
// From the options to the exit status, on one machine: decide, open the endpoint, start the
// guardian, report. Called by main.cc; with --hosts by the far ends (hosts/control_stdin.h).

#include <optional>
#include <string>

#include "common/error.h"
#include "launcher/guard/guardian.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// Sets how much ddprun itself writes to stderr, and in which format, by the options.

// Lines of this process begin with `name` from now on.
void start_log(const std::string& name, const Options& options);

// Logs why ddprun ends, and returns the exit status for it.
int fail(const Failure& failure);

// The environment that ddprun was started with, for reading options.

// The token is in the result, and from now on nowhere else: neither in forked processes nor in
// /proc.
Environment take_environment();

// `companion` is started and watched like an agent: it receives the orders of --hosts. Returns the
// exit status, or one sentence with the reason why nothing was started.
Result<int> launch(Options options, const Environment& environment,
                   std::optional<GuardedChild> companion);

}  // namespace ddprun::launcher
