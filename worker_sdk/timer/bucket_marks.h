#pragma once
// Where a bucket was in a GPU's streams: what BucketFlow collects and DevicePhases reads.

#include <memory>
#include <vector>

#include "worker_sdk/transport/device_side.h"

namespace ddprun::worker_sdk {

struct BucketMarks {
  std::shared_ptr<const DeviceMark> ready;      // Its last gradient was there.
  std::vector<std::shared_ptr<Pending>> works;  // Its collectives.
};

}  // namespace ddprun::worker_sdk
