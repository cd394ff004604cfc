#include "worker_sdk/nccl/nccl_pending.h"

#include <thread>

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

namespace {

constexpr int kYields = 200;
constexpr std::chrono::microseconds kPause{100};

}  // namespace

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
  const int status = end_.poll();
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
  fate_->thrown.store(true);
  throw Error(*fate_->failure);
}

void NcclPending::follow(Stream stream) {
  refuse_if_failed();
  end_.hold_up(static_cast<CudaStream>(stream));
}

bool NcclPending::wait_until(Clock::time_point limit) {
  for (int poll = 0;; ++poll) {
    refuse_if_failed();
    if (passed()) return true;
    if (Clock::now() >= limit) return false;
    if (poll < kYields) {
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

// Only as exact as the watch is quick: the device has another clock than the host.
Clock::time_point NcclPending::started() noexcept {
  if (!passed()) return {};
  return Clock::time_point(Clock::duration(seen_.load())) - duration();
}

}  // namespace ddprun::worker_sdk
