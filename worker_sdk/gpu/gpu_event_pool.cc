#include "worker_sdk/gpu/gpu_event_pool.h"

namespace ddprun::worker_sdk {

GpuEventPool::~GpuEventPool() {
  for (const auto& [kind, events] : free_) {
    for (CudaEvent event : events) cuda_.event_destroy(event);
  }
}

int GpuEventPool::take(int device, unsigned flags, CudaEvent* event) {
  {
    const std::lock_guard lock(mutex_);
    auto& events = free_[{device, flags}];
    if (events.capacity() == 0) events.reserve(kKept);  // So give_back() allocates nothing.
    if (!events.empty()) {
      *event = events.back();
      events.pop_back();
      return kCudaSuccess;
    }
  }
  return cuda_.event_create(event, flags);
}

void GpuEventPool::give_back(int device, unsigned flags, CudaEvent event) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto events = free_.find({device, flags});
    if (events != free_.end() && events->second.size() < kKept) {
      events->second.push_back(event);
      return;
    }
  }
  cuda_.event_destroy(event);
}

}  // namespace ddprun::worker_sdk
