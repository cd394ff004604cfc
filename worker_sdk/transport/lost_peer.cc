#include "worker_sdk/transport/lost_peer.h"

#include "common/assert.h"

namespace ddprun::worker_sdk {

void LostPeer::tell(int rank, const std::string& why) noexcept {
  DDPRUN_ASSERT(rank >= 0);
  const std::lock_guard lock(mutex_);
  if (*this) return;
  why_ = why;
  rank_.store(rank, std::memory_order_release);
}

std::string LostPeer::text(const Roster& roster) const {
  DDPRUN_ASSERT(*this);
  const std::lock_guard lock(mutex_);
  return "lost " + roster.name(rank()) + " (the agent reports: " + why_ + ")";
}

Error LostPeer::error(const Roster& roster, const Call& call) const {
  return failure(roster, call, ErrorKind::peer_lost, rank(), text(roster));
}

}  // namespace ddprun::worker_sdk
