#include "worker_sdk/gpu/gpu_event.h"

namespace ddprun::worker_sdk {

// The default stream cannot be captured, and asking about it may end a capture.
bool is_captured(const GpuRuntime& gpu, CudaStream stream) {
  if (!stream) return false;
  int status = kCudaNotCaptured;
  const int result =
      query_quietly(gpu.cuda, [&] { return gpu.cuda.is_capturing(stream, &status); });
  return result == kCudaSuccess && status != kCudaNotCaptured;
}

GpuEvent::GpuEvent(std::shared_ptr<const GpuRuntime> gpu, int device, unsigned flags)
    : gpu_(std::move(gpu)), device_(device), flags_(flags) {
  const GpuDeviceGuard current(*gpu_, device);
  require(*gpu_, current.status(), "cudaSetDevice");
  require(*gpu_, gpu_->events->take(device, flags, &event_), "cudaEventCreate");
}

GpuEvent::~GpuEvent() { gpu_->events->give_back(device_, flags_, event_); }

void GpuEvent::record(CudaStream stream) {
  require(*gpu_, gpu_->cuda.event_record(event_, stream), "cudaEventRecord");
}

// The default stream is that of the thread's device.
void GpuEvent::hold_up(CudaStream stream) const {
  const GpuDeviceGuard current(*gpu_, device_);
  require(*gpu_, gpu_->cuda.stream_wait(stream, event_, 0), "cudaStreamWaitEvent");
}

// Sets the device, or a thread that has none yet would make itself a context on the first one.
int GpuEvent::poll() const {
  const GpuDeviceGuard current(*gpu_, device_);
  const int status = query_quietly(gpu_->cuda, [&] { return gpu_->cuda.event_query(event_); });
  const bool captured = status >= kCudaCaptureErrors && status < kCudaCaptureErrorsEnd;
  return captured ? kCudaNotReady : status;
}

// True also after an error of the device, so that no wait lasts for ever.
bool GpuEvent::passed() const { return poll() != kCudaNotReady; }

std::chrono::nanoseconds GpuEvent::until(const DeviceMark& end) const {
  float milliseconds = 0;
  const CudaEvent last = static_cast<const GpuEvent&>(end).event_;
  const int status = query_quietly(
      gpu_->cuda, [&] { return gpu_->cuda.event_elapsed(&milliseconds, event_, last); });
  if (status != kCudaSuccess) return {};
  return std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6F));
}

// Errors that the program has not yet read from CUDA stay there for it.
std::shared_ptr<const DeviceMark> ForeignStreams::mark(Stream stream) {
  const auto in = static_cast<CudaStream>(stream);
  if (is_captured(*gpu_, in)) return nullptr;
  std::shared_ptr<GpuEvent> event;
  query_quietly(gpu_->cuda, [&] {
    const GpuDeviceGuard current(*gpu_, device_);
    try {
      event = std::make_shared<GpuEvent>(gpu_, device_, kCudaEventDefault);
      event->record(in);
      return kCudaSuccess;
    } catch (const Error&) {
      event.reset();
      return kCudaNotReady;  // Any: there is none.
    }
  });
  return event;
}

}  // namespace ddprun::worker_sdk
