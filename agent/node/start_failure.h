#pragma once
// What is reported of a worker that could not be started: whose mistake it is, and what was short.
// Computes only.

#include <cstdint>
#include <optional>

#include "common/error.h"
#include "common/system/limits.h"
#include "common/worker_death.h"

namespace ddprun::agent {

// Its fault, exit code and detail; the rest is the caller's.
// `tasks`: the smallest pids.max of our cgroups.
WorkerDeath start_failure(const Failure& why, const Limits& limits, int workers,
                          std::optional<std::int64_t> tasks);

}  // namespace ddprun::agent
