#include "agent/health/sync_ledger.h"

#include "common/assert.h"

namespace ddprun::agent {

LateCounts& SyncLedger::late(int rank) {
  DDPRUN_ASSERT(untold_);
  for (LateRank& one : untold_->late) {
    if (one.rank == rank) return one.counts;
  }
  return untold_->late.emplace_back(LateRank{.rank = rank}).counts;
}

void SyncLedger::see(int local_rank, int rank, const WorkerCounts& now) {
  DDPRUN_ASSERT(local_rank >= 0 && rank >= 0);
  WorkerCounts& before = seen_[local_rank];
  if (now == before) return;
  const WorkerCounts more = now.since(before);
  if (!untold_) untold_.emplace();
  untold_->sums.add(more.sums, kMost);
  if (more.late != LateCounts()) late(rank).add(more.late, kMost);
  before = now;
}

}  // namespace ddprun::agent
