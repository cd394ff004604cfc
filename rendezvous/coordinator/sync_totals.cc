#include "rendezvous/coordinator/sync_totals.h"

namespace ddprun::rendezvous {

void SyncTotals::add(const SyncIncrease& more) {
  sums_.add(more.sums);
  for (const LateRank& late : more.late) {
    const bool has_place = late_.contains(late.rank) || late_.size() < kLateRanksMax;
    late_[has_place ? late.rank : -1].add(late.counts);
  }
}

}  // namespace ddprun::rendezvous
