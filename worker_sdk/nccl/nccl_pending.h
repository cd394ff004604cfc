#pragma once
// One operation in the stream of a communicator, as nccl_watch.cc and a Work see it.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "worker_sdk/gpu/gpu_event.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// What all operations of a backend share, and may outlive it.
struct NcclFate {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;      // Under the mutex, with its diagnosis.
  std::atomic<bool> failing{false};  // Set before anything is aborted: an event that passes later
                                     // proves nothing.
  std::atomic<bool> told{false};     // Somebody was thrown `failure`.
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

  // For the backend, in the stream before and after the operation. Until its end is there, NCCL
  // is about to put it there, for which it may need the peers.
  void begin(CudaStream stream) { begin_.record(stream); }
  void end(CudaStream stream);
  const Call& call() const { return call_; }
  bool begun() const { return begin_.passed(); }  // What was before it in the stream is done.
  bool passed();  // The end has come to pass, and nothing had failed by then.
  int fault() const { return fault_.load(); }  // Of the device, as passed() found it.

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

// Operations that are put into a stream while CUDA captures it for a graph: nothing is carried out,
// so nothing may be asked about it, and what runs when the graph is launched is no Work of ours.

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
