#pragma once
// The descriptor by which a program that polls learns that asynchronous operations of a group have
// ended. Works keep it, so that it is open as long as one of them may signal.

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "common/system/descriptors.h"
#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {

// From any thread.
class Completions {
 public:
  // Opens it with the first call. Throws Error(system) at `where`.
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
