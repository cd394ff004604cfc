// The part of Coordinator for those that watch a run: its ranks one by one, and what happened.

#include <map>

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/ledger/rank_status.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kEventsMax = 20;  // Of one run.

}  // namespace

DaemonStatus Coordinator::watched(TimePoint now) const {
  DaemonStatus all = status(now);
  std::map<std::string, RunStatus*> by_id;
  for (RunStatus& run : all.runs) {
    by_id[run.run_id] = &run;
    const auto ledger = ledgers_.find(run.run_id);
    if (ledger != ledgers_.end()) add_ranks(run, ledger->second, now);
  }
  for (const Happening& one : happenings_) {
    const auto run = by_id.find(one.news.run_id);
    if (run == by_id.end()) continue;
    const std::string where = one.news.node.empty() ? "" : one.news.node + ": ";
    run->second->events.push_back({one.run_s, one.news.is_trouble, where + one.news.text});
  }
  for (RunStatus& run : all.runs) {
    if (run.events.size() <= kEventsMax) continue;
    run.events.erase(run.events.begin(), run.events.end() - kEventsMax);
  }
  return all;
}

}  // namespace ddprun::rendezvous
