#pragma once
// Do all ranks still hold the same parameters? Used by distributed_data_parallel.cc every
// DdpOptions::checksum_every steps.

#include <vector>

#include "ddprun/distributed_data_parallel.h"

namespace ddprun::worker_sdk {

// Collective; eight bytes a rank travel while all is well. Throws Error(mismatch) on every rank,
// which names the first parameter that differs and the ranks on which it does.
void require_equal_values(ProcessGroup& group, const std::vector<Parameter>& parameters);

}  // namespace ddprun::worker_sdk
