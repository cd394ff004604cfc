#pragma once
// How long ago this process was started, in seconds that passed. Used by the sync timer's summary
// and by Progress.

#include <chrono>

namespace ddprun::worker_sdk {

// 0 if the system does not say. Costs a look into /proc at the first call only.
std::chrono::nanoseconds process_age();

}  // namespace ddprun::worker_sdk
