#pragma once
// What ddprun itself writes to stderr: as much, and in such lines, as the options say.

#include <string>

#include "common/error.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// Lines of this process begin with `name` from now on.
void start_log(const std::string& name, const Options& options);

// Logs why ddprun ends, and returns the exit status for it.
int fail(const Failure& failure);

}  // namespace ddprun::launcher
