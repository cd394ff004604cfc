#pragma once
// CUDA events that are used again. A step needs two for each bucket and some for the sync timer,
// and to make one takes longer than to record it. Part of a GpuRuntime; nccl_pending.cc takes them.

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_sdk/gpu/cuda_abi.h"

namespace ddprun::worker_sdk {

// Usable from any thread.
class GpuEventPool {
 public:
  explicit GpuEventPool(const CudaApi& cuda) : cuda_(cuda) {}
  ~GpuEventPool();
  GpuEventPool(const GpuEventPool&) = delete;
  GpuEventPool& operator=(const GpuEventPool&) = delete;

  // An event of `device`, which must be the current one. What was recorded in it before is no
  // longer used. Returns CUDA's status.
  int take(int device, unsigned flags, CudaEvent* event);
  // The event may be recorded in a stream that has not reached it yet.
  void give_back(int device, unsigned flags, CudaEvent event) noexcept;

 private:
  static constexpr std::size_t kKept = 1024;  // Per kind; more are destroyed.

  const CudaApi cuda_;
  std::mutex mutex_;
  std::map<std::pair<int, unsigned>, std::vector<CudaEvent>> free_;  // By device and flags.
};

}  // namespace ddprun::worker_sdk
