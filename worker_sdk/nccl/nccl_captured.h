#pragma once
// Operations that are put into a stream while CUDA captures it for a graph: nothing is carried out,
// so nothing may be asked about it, and what runs when the graph is launched is no Work of ours.

#include <memory>

#include "worker_sdk/nccl/nccl_pending.h"

namespace ddprun::worker_sdk {

// Its stream can be made to wait for it; all else is unknown.
class NcclCaptured final : public Pending {
 public:
  // The end of what was put into `stream`.
  NcclCaptured(std::shared_ptr<const GpuRuntime> gpu, int device, const Call& call,
               std::shared_ptr<NcclFate> fate, CudaStream stream);

  bool done() noexcept override { return false; }
  void follow(Stream stream) override;
  bool wait_until(Clock::time_point limit) override;  // Throws.
  std::optional<Error> error() override { return std::nullopt; }
  std::chrono::nanoseconds duration() noexcept override { return {}; }
  Clock::time_point started() noexcept override { return {}; }
  const DeviceMark& begin_mark() const override { return never_; }
  const DeviceMark& end_mark() const override { return never_; }

 private:
  class Never final : public DeviceMark {
    bool passed() const override { return false; }
    std::chrono::nanoseconds until(const DeviceMark&) const override { return {}; }
  };

  const Call call_;
  const std::shared_ptr<NcclFate> fate_;
  GpuEvent end_;
  Never never_;
};

}  // namespace ddprun::worker_sdk
