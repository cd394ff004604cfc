#pragma once
// What a backend was told of a peer that is gone. The first word counts.

#include <atomic>
#include <mutex>
#include <string>

#include "ddprun/error.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class LostPeer {
 public:
  // From any thread. `why` in the words of who knows it.
  void tell(int rank, const std::string& why) noexcept;
  int rank() const noexcept { return rank_.load(std::memory_order_acquire); }  // -1: none.
  explicit operator bool() const noexcept { return rank() >= 0; }

  // Only where there is one. "lost rank 2 on node-b (the agent reports: its node was lost)"
  std::string text(const Roster& roster) const;
  Error error(const Roster& roster, const Call& call) const;

 private:
  std::atomic<int> rank_{-1};
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace ddprun::worker_sdk
