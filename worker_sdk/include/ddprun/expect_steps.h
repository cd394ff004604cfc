#pragma once
// How many steps a run will make, for ddprunctl and the pages that show its progress.

#include <cstdint>

#include "ddprun/process_group.h"

namespace ddprun {

/// Reports that this rank will make `more` further steps, as counted by a sync timer such as that
/// of DistributedDataParallel, so that ddprun can show the time left. Call it before the first of
/// these steps; it may be called again, with the number then left.
void expect_steps(ProcessGroup& group, std::int64_t more);

}  // namespace ddprun
