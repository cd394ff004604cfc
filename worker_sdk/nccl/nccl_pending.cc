#include "worker_sdk/nccl/nccl_pending.h"

#include <thread>

namespace ddprun::worker_sdk {
namespace {

constexpr int kYields = 200;
constexpr std::chrono::microseconds kPause{100};

}  // namespace

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

// The device is set, or a thread that has none yet would make itself a context on the first one.
int GpuEvent::look() const {
  const GpuDeviceGuard current(*gpu_, device_);
  const int status = ask_quietly(gpu_->cuda, [&] { return gpu_->cuda.event_query(event_); });
  const bool captured = status >= kCudaCaptureErrors && status < kCudaCaptureErrorsEnd;
  return captured ? kCudaNotReady : status;
}

// With an error of the device, too: whoever waits shall not wait for ever.
bool GpuEvent::passed() const { return look() != kCudaNotReady; }

std::chrono::nanoseconds GpuEvent::until(const DeviceMark& end) const {
  float milliseconds = 0;
  const CudaEvent last = static_cast<const GpuEvent&>(end).event_;
  const int status = ask_quietly(
      gpu_->cuda, [&] { return gpu_->cuda.event_elapsed(&milliseconds, event_, last); });
  if (status != kCudaSuccess) return {};
  return std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6F));
}

NcclPending::NcclPending(std::shared_ptr<const GpuRuntime> gpu, int device, const Call& call,
                         std::shared_ptr<NcclFate> fate)
    : call_(call),
      fate_(std::move(fate)),
      begin_(gpu, device, kCudaEventDefault),
      end_(gpu, device, kCudaEventDefault) {}

void NcclPending::end(CudaStream stream) {
  end_.record(stream);
  enqueued_.store(true);
}

bool NcclPending::passed() {
  if (state_.load() == State::kPassed) return true;
  if (!enqueued_.load()) return false;
  const int status = end_.look();
  if (status != kCudaSuccess && status != kCudaNotReady) fault_.store(status);
  if (status != kCudaSuccess || fate_->failing.load()) return false;
  seen_.store(Clock::now().time_since_epoch().count());
  state_.store(State::kPassed);
  return true;
}

bool NcclPending::done() noexcept {
  if (passed()) return true;
  const std::lock_guard lock(fate_->mutex);
  return fate_->failure.has_value();
}

std::optional<Error> NcclPending::error() {
  if (passed()) return std::nullopt;
  const std::lock_guard lock(fate_->mutex);
  return fate_->failure;
}

void NcclPending::refuse_if_failed() {
  if (passed()) return;
  const std::lock_guard lock(fate_->mutex);
  if (!fate_->failure) return;
  fate_->told.store(true);
  throw Error(*fate_->failure);
}

void NcclPending::follow(Stream stream) {
  refuse_if_failed();
  end_.hold_up(static_cast<CudaStream>(stream));
}

bool NcclPending::wait_until(Clock::time_point limit) {
  for (int look = 0;; ++look) {
    refuse_if_failed();
    if (passed()) return true;
    if (Clock::now() >= limit) return false;
    if (look < kYields) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(fate_->mutex);
    fate_->changed.wait_for(lock, kPause, [&] { return fate_->failure.has_value(); });
  }
}

std::chrono::nanoseconds NcclPending::duration() noexcept {
  return passed() ? begin_.until(end_) : std::chrono::nanoseconds(0);
}

// As exact as the watch is quick: the device's clock is not the host's.
Clock::time_point NcclPending::started() noexcept {
  if (!passed()) return {};
  return Clock::time_point(Clock::duration(seen_.load())) - duration();
}

}  // namespace ddprun::worker_sdk
