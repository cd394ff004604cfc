#pragma once
// Looks a host name up within a deadline. Used by main before anything is started.

#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// Numeric addresses of `name`; empty if it has none or the answer takes longer than `limit`. The
// look-up runs in a process of its own, because the C library's cannot be cancelled.
std::vector<std::string> resolve_name(const std::string& name,
                                      Milliseconds limit = std::chrono::seconds(5));

// Makes --local-addr and --advertise-addr numeric, as nodes are given each other's addresses as
// numbers.
Result<void> resolve_local_address(Options& options);

}  // namespace ddprun::launcher
