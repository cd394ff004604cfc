#pragma once
// Notices that a peer of Gloo's is gone, and ends the waits for messages from or to it. Only
// gloo_backend*.cc and gloo_transfers.cc use this.
//
// Gloo itself notifies all pending operations of a broken connection, but for those in the middle
// of
// a message: its receiver and its sender wait on until their deadline. So a thread watches for the
// ends of connections; when Gloo has read all that a peer ever sent, it aborts the waits for that
// peer. To learn that Gloo has read all, a receive is posted for each peer for which no message is
// ever sent: it fails, under the connection's lock, after all complete messages were handed out.

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "worker_sdk/gloo/gloo_mesh.h"

namespace ddprun::worker_sdk {

// Gloo writes to its sockets in a way that raises SIGPIPE when a peer has died, which would end a
// program that does not ignore the signal. While a guard lives, the signal is blocked in this
// thread (and in those it creates); a signal raised in that time is discarded.
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

class GlooWatch {
 public:
  // Starts the thread, so that what the system refuses is refused before any peer has connected.
  GlooWatch();
  ~GlooWatch();
  GlooWatch(const GlooWatch&) = delete;
  GlooWatch& operator=(const GlooWatch&) = delete;

  // Once, before anything else. `connections` by rank; their sockets must outlive this.
  void begin(gloo::Context& context, const std::vector<GlooConnection>& connections);

  // Between add, before `buffer` is sent or received, and remove its wait is freed if `peer` is
  // lost.
  void add(int peer, gloo::transport::UnboundBuffer& buffer);
  void remove(const gloo::transport::UnboundBuffer& buffer);

  // Ends all waits, also later ones: a peer is gone, but its connection has not ended.
  void free_all() noexcept;

  // The rank of the connection that ended first; -1: none.
  int first_lost() const noexcept { return first_lost_.load(); }

 private:
  struct Sentinel;
  void run();
  void lose(int peer);

  std::vector<std::unique_ptr<Sentinel>> sentinels_;  // By rank.
  std::mutex mutex_;
  std::condition_variable begun_;
  std::optional<std::vector<int>> sockets_;  // By rank, once the watch has begun.
  std::map<const gloo::transport::UnboundBuffer*, std::pair<int, gloo::transport::UnboundBuffer*>>
      pending_;
  bool all_free_ = false;
  std::atomic<int> first_lost_{-1};
  std::atomic<bool> stopping_{false};
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
