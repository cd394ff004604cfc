#include "rendezvous/ledger/rank_status.h"

#include <map>
#include <utility>

namespace ddprun::rendezvous {

void add_ranks(RunStatus& run, const RunLedger& ledger, TimePoint now) {
  std::map<NodeId, std::vector<RankStatus>> by_node;
  for (const RunLedger::Row& row : ledger.rows(now)) {
    if (row.gone_at) continue;
    const std::chrono::duration<double, std::milli> late = row.late_a_step;
    by_node[row.node].push_back({.rank = row.times.rank,
                                 .local_rank = row.times.local_rank,
                                 .at = name_of(row.times.at),
                                 .steps = row.times.steps,
                                 .steps_per_s = row.steps_per_s,
                                 .late_ms = late.count(),
                                 .cpu = row.cpu,
                                 .resident = row.times.resident});
  }
  for (NodeStatus& node : run.nodes) {
    const auto found = by_node.find(node.id);
    if (found != by_node.end()) node.ranks = std::move(found->second);
  }
}

void add_ledger(RunStatus& run, const RunLedger& ledger, TimePoint now) {
  if (ledger.empty()) return;
  run.ledger = ledger.totals(now);
  run.rounds = ledger.rounds(now);
  const auto progress = ledger.progress();
  if (!progress) return;
  run.step = progress->step;
  run.steps_per_s = progress->steps_per_s;
  run.steps_left = progress->steps_left;
  run.late = ledger.late();
}

}  // namespace ddprun::rendezvous
