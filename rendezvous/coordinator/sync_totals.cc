#include "rendezvous/coordinator/sync_totals.h"

#include "common/sync_counts.h"

namespace ddprun::rendezvous {

void SyncTotals::add(const SyncIncrease& more) {
  sums_.add(more.sums);
  for (const LateRank& late : more.late) {
    const bool has_place = late_.contains(late.rank) || late_.size() < kLateRanksMax;
    late_[has_place ? late.rank : -1].add(late.counts);
    if (has_place && late.time().count() > 0) last_late_[late.rank] = late.counts;
  }
}

std::string SyncTotals::late_phase(int rank) const {
  const auto last = last_late_.find(rank);
  return last == last_late_.end() ? "" : worst_phase(last->second);
}

}  // namespace ddprun::rendezvous
