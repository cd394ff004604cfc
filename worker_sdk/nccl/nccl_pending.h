#pragma once
// One operation in the stream of a communicator, as nccl_watch.cc and a Work see it.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// The state that all operations of a backend share. They may outlive the backend.
struct NcclFate {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;      // Under the mutex, with its diagnosis.
  std::atomic<bool> failing{false};  // Set before anything is aborted: an event that passes later
                                     // proves nothing.
  std::atomic<bool> thrown{false};   // `failure` was thrown to a caller.
};

class NcclPending final : public Pending {
 public:
  NcclPending(std::shared_ptr<const GpuRuntime> gpu, int device, const Call& call,
              std::shared_ptr<NcclFate> fate);

  bool done() noexcept override;
  void follow(Stream stream) override;
  bool wait_until(Clock::time_point limit) override;
  std::optional<Error> error() override;
  std::chrono::nanoseconds duration() noexcept override;
  Clock::time_point started() noexcept override;
  const DeviceMark& begin_mark() const override { return begin_; }
  const DeviceMark& end_mark() const override { return end_; }

  // The backend calls these for the stream before and after the operation. Until the end mark is in
  // the stream, NCCL is about to put the operation there, for which it may need the peers.
  void begin(CudaStream stream) { begin_.record(stream); }
  void end(CudaStream stream);
  const Call& call() const { return call_; }
  bool begun() const { return begin_.passed(); }  // The work before it in the stream is done.
  bool passed();  // The end has passed, and nothing had failed by then.
  int fault() const { return fault_.load(); }  // The device's error that passed() found.

 private:
  enum class State { kRunning, kPassed };
  void refuse_if_failed();

  const Call call_;
  const std::shared_ptr<NcclFate> fate_;
  GpuEvent begin_, end_;
  std::atomic<bool> enqueued_{false};  // The end is in the stream.
  std::atomic<int> fault_{kCudaSuccess};
  std::atomic<State> state_{State::kRunning};
  std::atomic<Clock::rep> seen_{0};  // When it was found passed.
};

// Operations that are put into a stream while CUDA captures it for a graph: they are not carried
// out, so their events must not be queried, and what runs when the graph is launched is not a Work
// of ours.

// A stream can be made to wait for it; nothing else is known.
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
