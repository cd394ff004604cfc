#include "agent/health/sync_ledger.h"

namespace ddprun::agent {

namespace {

template <class Counts>
void take(Counts& sum, const Counts& more) {
  sum.add(more.at_most(SyncLedger::kMost));
  sum = sum.at_most(SyncLedger::kMost);
}

}  // namespace

LateCounts& SyncLedger::late(int rank) {
  for (LateRank& one : untold_->late) {
    if (one.rank == rank) return one.counts;
  }
  return untold_->late.emplace_back(LateRank{.rank = rank}).counts;
}

void SyncLedger::see(int local_rank, int rank, const WorkerCounts& now) {
  WorkerCounts& before = seen_[local_rank];
  if (now == before) return;
  const WorkerCounts more = now.since(before);
  if (!untold_) untold_.emplace();
  take(untold_->sums, more.sums);
  if (more.late != LateCounts()) take(late(rank), more.late);
  before = now;
}

}  // namespace ddprun::agent
