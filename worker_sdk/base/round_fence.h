#pragma once
// The end of a round, for everything that waits in it: groups, stores, attempts to join. The thread
// of the worker's link raises a fence (worker/agent_link.h); there is one per seat.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace ddprun::worker_sdk {

// Is this still the process that joined? A forked child has a copy of everything, and shares what
// it must not use: shared memory, sockets, the page to the agent. ProcessGroup checks this in each
// call.

// How many forks are between this process and the one in which it was called first. Two equal
// results are from one process. As cheap as reading a variable, once it has been called.
std::uint64_t fork_count() noexcept;

// Used from any thread.
class RoundFence : public std::enable_shared_from_this<RoundFence> {
 public:
  struct Notice {
    int lost_rank = -1;  // In the round; -1: no rank's end is the reason.
    std::string why;
  };
  // Must not block, nor call this fence.
  using Listener = std::function<void()>;

  // Calls all listeners. Only the first call has an effect.
  void raise(Notice word);
  bool is_raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  std::optional<Notice> word() const;

  // The listener is called at most once: when the fence is raised, or at once if it was. Destroying
  // the handle removes the listener and waits for a running call of it.
  std::shared_ptr<void> listen(Listener listener);

 private:
  mutable std::mutex mutex_;
  std::list<Listener> listeners_;
  Notice notice_;
  std::atomic<bool> raised_{false};
};

}  // namespace ddprun::worker_sdk
