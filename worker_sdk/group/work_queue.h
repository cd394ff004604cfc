#pragma once
// The thread of a ProcessGroup that carries out asynchronous operations in the order of their
// calls, and the state behind a Work. The thread starts with the first operation.

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "common/system/descriptors.h"
#include "ddprun/process_group.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// The descriptor by which a program that polls is notified that asynchronous operations of a group
// have ended. Works keep it, so that it is open as long as one of them may signal.

// Usable from any thread.
class Completions {
 public:
  // Opens the descriptor in the first call. Throws Error(system) at `where`.
  int descriptor(const Error::Where& where) {
    const std::lock_guard lock(mutex_);
    if (!fd_) {
      fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!fd_) throw refused(where, "eventfd", errno);
      number_.store(fd_.get(), std::memory_order_release);
    }
    return fd_.get();
  }

  void signal() noexcept {
    const int fd = number_.load(std::memory_order_acquire);
    if (fd >= 0) (void)::eventfd_write(fd, 1);
  }

 private:
  std::mutex mutex_;
  UniqueFd fd_;
  std::atomic<int> number_{-1};
};

}  // namespace ddprun::worker_sdk

namespace ddprun {

struct WorkState {
  const std::uint64_t forks = worker_sdk::fork_count();  // Of the process that made it.
  std::mutex mutex;
  std::condition_variable finished;
  std::atomic<bool> done{false};
  std::exception_ptr error;                       // Set before `done`.
  std::chrono::nanoseconds duration{0};           // Set before `done`.
  std::chrono::steady_clock::time_point start{};  // Set before `done`.
  // For an operation of a device; then the members above are not used.
  std::shared_ptr<worker_sdk::Pending> pending;
  std::optional<Stream> stream;                          // The stream that is to wait for it.
  std::shared_ptr<worker_sdk::Completions> completions;  // Signalled at the end; may be null.
};

namespace worker_sdk {

class WorkQueue {
 public:
  WorkQueue() = default;
  ~WorkQueue();  // Waits for all operations. They have deadlines.
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Call before post(). Throws Error(system) at `where` if no thread can be started.
  void start(const Error::Where& where = {});
  std::shared_ptr<WorkState> post(std::function<void()> operation,
                                  std::shared_ptr<Completions> completions = nullptr);

  // True if no operation is queued or in progress: then the caller may use the backend itself.
  bool idle() const noexcept { return pending_.load(std::memory_order_acquire) == 0; }
  // CPU time of its thread; 0 before the first operation.
  std::chrono::nanoseconds cpu_time();
  // False: still busy after `limit`.
  bool wait_idle(std::chrono::milliseconds limit);

  // Carries out `operation` here and now, as the thread would.
  static void carry_out(const std::function<void()>& operation, WorkState& state);

 private:
  struct Item {
    std::function<void()> operation;
    std::shared_ptr<WorkState> state;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool stopping_ = false;
  std::atomic<int> pending_{0};
  std::thread thread_;
};

}  // namespace worker_sdk

}  // namespace ddprun
