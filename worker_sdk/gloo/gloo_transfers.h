#pragma once
// Messages between Gloo's ranks that are in progress together, and the watch that ends the waits
// for those of a peer that is gone. Only gloo_backend*.cc use this.
//
// A message is matched by its pair of ranks and its slot. Memory must stay as it is until the wait:
// a message whose end wait() has not seen would be dropped with its buffer.

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "worker_sdk/base/operation.h"
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

// Notices that a peer of Gloo's is gone, and ends the waits for messages from or to it.
//
// Gloo itself notifies all pending operations of a broken connection, but for those in the middle
// of a message: its receiver and its sender wait on until their deadline. So a thread watches for
// the ends of connections; when Gloo has read all that a peer ever sent, it aborts the waits for
// that peer. To learn that Gloo has read all, a receive is posted for each peer for which no
// message is ever sent: it fails, under the connection's lock, after all complete messages were
// handed out.
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

// Numbers by which Gloo's ranks match their messages.

// FNV-1a: stable between builds, unlike std::hash.
inline std::uint32_t tag_of(std::initializer_list<std::uint64_t> fields) {
  std::uint32_t hash = 2166136261u;
  for (std::uint64_t field : fields) {
    for (int i = 0; i < 8; ++i, field >>= 8) hash = (hash ^ (field & 0xff)) * 16777619u;
  }
  return hash;
}

inline std::uint32_t tag_of(const Call& call) {
  return tag_of(
      {static_cast<std::uint64_t>(call.what.kind), static_cast<std::uint64_t>(call.what.type),
       static_cast<std::uint64_t>(call.what.op), static_cast<std::uint64_t>(call.what.rank),
       call.what.count, call.what.parts, call.number});
}

// Ours are in a part of Gloo's slots that no collective of its own uses.
inline std::uint64_t message_slot(const Call& call, int from, int to, std::uint32_t number) {
  constexpr std::uint64_t kPointToPoint = 0x70;
  const std::uint32_t tag =
      tag_of({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), number,
              static_cast<std::uint64_t>(call.what.type), call.what.count});
  return kPointToPoint << 56 | std::uint64_t{tag} << 24;
}

inline std::uint64_t collective_slot(const Call& call) {
  constexpr std::uint64_t kCollective = 0x71;
  return kCollective << 56 | std::uint64_t{tag_of(call)} << 24;
}

class GlooTransfers {
 public:
  // `slot`: its lowest 24 bits are free for parts of one operation.
  GlooTransfers(gloo::Context& context, GlooWatch& watch, std::uint64_t slot,
                Clock::time_point deadline)
      : context_(context), watch_(watch), slot_(slot), deadline_(deadline) {}
  GlooTransfers(GlooTransfers&&) = default;
  ~GlooTransfers();

  void send(int peer, const void* data, std::size_t bytes, std::uint32_t part = 0);
  void recv(int peer, void* data, std::size_t bytes, std::uint32_t part = 0);

  // The waits throw gloo::Exception, at the deadline at the latest.
  void wait_received();
  void wait();  // For all messages.

 private:
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;
  void forget(Buffers& buffers);

  gloo::Context& context_;
  GlooWatch& watch_;
  const std::uint64_t slot_;
  const Clock::time_point deadline_;
  Buffers sent_, received_;
};

}  // namespace ddprun::worker_sdk
