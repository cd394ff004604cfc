#include "worker_sdk/nccl/nccl_captured.h"

namespace ddprun::worker_sdk {

NcclCaptured::NcclCaptured(std::shared_ptr<const GpuRuntime> gpu, int device, const Call& call,
                           std::shared_ptr<NcclFate> fate, CudaStream stream)
    : call_(call), fate_(std::move(fate)), end_(std::move(gpu), device, kCudaEventDisableTiming) {
  end_.record(stream);
}

void NcclCaptured::follow(Stream stream) {
  {
    const std::lock_guard lock(fate_->mutex);
    if (fate_->failure) throw Error(*fate_->failure);
  }
  end_.hold_up(static_cast<CudaStream>(stream));
}

bool NcclCaptured::wait_until(Clock::time_point) {
  throw Error(
      ErrorKind::bad_argument, {.operation = to_string(call_)},
      "it was captured in a CUDA graph, so the host cannot wait for it; wait for the stream "
      "that the graph is launched in");
}

}  // namespace ddprun::worker_sdk
