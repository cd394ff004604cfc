#pragma once
// Gloo writes to its sockets in a way that raises SIGPIPE when a peer has died, which would end a
// program that has not chosen to ignore it. While a guard lives, the signal is blocked in this
// thread (and in those it creates); one that was raised meanwhile is taken back.

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace ddprun::worker_sdk {

class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    was_pending_ = is_pending();
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  ~SigpipeGuard() {
    if (!was_pending_ && is_pending()) {
      const timespec no_time{0, 0};
      ::sigtimedwait(&sigpipe_, nullptr, &no_time);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  static bool is_pending() {
    sigset_t pending;
    sigemptyset(&pending);
    ::sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace ddprun::worker_sdk
