#include "rendezvous/coordinator/sync_totals.h"

namespace ddprun::rendezvous {

void SyncTotals::add(const SyncCounts& more) {
  sums_.steps += more.steps;
  sums_.bytes += more.bytes;
  sums_.outside_ns += more.outside_ns;
  sums_.forward_ns += more.forward_ns;
  sums_.backward_ns += more.backward_ns;
  sums_.exposed_ns += more.exposed_ns;
  sums_.waited_ns += more.waited_ns;
  sums_.comm_ns += more.comm_ns;
  if (more.busbw > 0) sums_.busbw = more.busbw;
  for (const LateRank& late : more.late) {
    const bool has_place = late_.contains(late.rank) || late_.size() < kLateRanksMax;
    const int rank = has_place ? late.rank : -1;
    LateRank& sum = late_[rank];
    sum.rank = rank;
    sum.steps += late.steps;
    sum.outside_ns += late.outside_ns;
    sum.forward_ns += late.forward_ns;
    sum.backward_ns += late.backward_ns;
  }
}

}  // namespace ddprun::rendezvous
