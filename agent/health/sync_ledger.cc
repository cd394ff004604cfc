#include "agent/health/sync_ledger.h"

#include <algorithm>

namespace ddprun::agent {

namespace {

// Sums of an honest page only grow.
void take(std::uint64_t& sum, std::uint64_t before, std::uint64_t now) {
  const std::uint64_t more = now > before ? now - before : 0;
  sum += std::min(more, SyncLedger::kMost - std::min(sum, SyncLedger::kMost));
}

}  // namespace

rendezvous::LateRank& SyncLedger::late(int rank) {
  for (rendezvous::LateRank& one : untold_->late) {
    if (one.rank == rank) return one;
  }
  return untold_->late.emplace_back(rendezvous::LateRank{.rank = rank});
}

void SyncLedger::see(int local_rank, int rank, const SyncSample& now) {
  SyncSample& before = seen_[local_rank];
  if (now.steps == before.steps && now.late_steps == before.late_steps &&
      now.waited_ns == before.waited_ns) {
    return;
  }
  if (!untold_) untold_.emplace();
  take(untold_->steps, before.steps, now.steps);
  take(untold_->bytes, before.bytes, now.bytes);
  take(untold_->outside_ns, before.phase_ns[0], now.phase_ns[0]);
  take(untold_->forward_ns, before.phase_ns[1], now.phase_ns[1]);
  take(untold_->backward_ns, before.phase_ns[2], now.phase_ns[2]);
  take(untold_->exposed_ns, before.exposed_ns, now.exposed_ns);
  take(untold_->waited_ns, before.waited_ns, now.waited_ns);
  take(untold_->comm_ns, before.comm_ns, now.comm_ns);
  if (now.busbw > 0) untold_->busbw = std::min(now.busbw, kMost);
  if (now.late_steps != before.late_steps) {
    rendezvous::LateRank& sum = late(rank);
    take(sum.steps, before.late_steps, now.late_steps);
    take(sum.outside_ns, before.late_ns[0], now.late_ns[0]);
    take(sum.forward_ns, before.late_ns[1], now.late_ns[1]);
    take(sum.backward_ns, before.late_ns[2], now.late_ns[2]);
  }
  before = now;
}

}  // namespace ddprun::agent
