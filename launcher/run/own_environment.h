#pragma once
// The environment that ddprun was started with, for reading options.

#include "launcher/options/options.h"

namespace ddprun::launcher {

// The token is in it, and from now on nowhere else: neither in what is forked nor in /proc.
Environment take_environment();

}  // namespace ddprun::launcher
