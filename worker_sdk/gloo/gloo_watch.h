#pragma once
// Notices that a peer of Gloo's is gone, and frees who waits for a message from or to it. Only
// gloo_backend*.cc and gloo_transfers.cc use this.
//
// Gloo itself tells all pending operations of a broken connection, but for those in the middle of a
// message: its receiver, and its sender, wait on until their deadline. So a thread watches for the
// ends of connections; when Gloo has read all that a peer ever sent, it aborts the waits for that
// peer. That Gloo has is told by a receive that is posted for each peer and that nothing is ever
// sent for: it fails, under the connection's lock, after all complete messages were handed out.

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "worker_sdk/gloo/gloo_sockets.h"

namespace ddprun::worker_sdk {

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

  // Frees all waits, those to come too: a peer is gone whose connection has not ended.
  void free_all() noexcept;

  // The rank whose connection ended first; -1: none has.
  int first_lost() const noexcept { return first_lost_.load(); }

 private:
  struct Sentinel;
  void run();
  void lose(int peer);

  std::vector<std::unique_ptr<Sentinel>> sentinels_;  // By rank.
  std::mutex mutex_;
  std::condition_variable begun_;
  std::optional<std::vector<int>> sockets_;  // By rank, once begun.
  std::map<const gloo::transport::UnboundBuffer*, std::pair<int, gloo::transport::UnboundBuffer*>>
      pending_;
  bool all_free_ = false;
  std::atomic<int> first_lost_{-1};
  std::atomic<bool> stopping_{false};
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
