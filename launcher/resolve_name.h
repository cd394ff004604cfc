#pragma once
// Looks a host name up within a deadline. Used by main before anything is started.

#include <string>
#include <vector>

#include "common/time.h"

namespace ddprun::launcher {

// Numeric addresses of `name`; empty if it has none or the answer takes longer than `limit`. The
// look-up runs in a process of its own, because the C library's cannot be given up.
std::vector<std::string> resolve_name(const std::string& name, Milliseconds limit);

}  // namespace ddprun::launcher
