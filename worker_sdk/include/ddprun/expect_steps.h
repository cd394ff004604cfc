#pragma once
// How many steps a run will make, for those who watch it.

#include <cstdint>

#include "ddprun/process_group.h"

namespace ddprun {

/// Says that this rank will make so many more steps, as a SyncTimer counts them (that of
/// DistributedDataParallel, for one), so that ddprun can show how long the run will take. To be
/// called before the first of them; may be called again, with what is left then.
void expect_steps(ProcessGroup& group, std::int64_t more);

}  // namespace ddprun
