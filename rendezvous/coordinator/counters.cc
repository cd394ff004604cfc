#include "rendezvous/coordinator/counters.h"

#include "common/sync_counts.h"

namespace ddprun::rendezvous {
namespace {

std::string sealed_text(const RunStatus& status) {
  int seated = 0;
  for (const NodeStatus& node : status.nodes) seated += node.group_rank >= 0 ? 1 : 0;
  return "round " + std::to_string(status.round) + " runs: nodes " + std::to_string(seated) +
         ", workers " + std::to_string(status.world_size) + ", restarts " +
         std::to_string(status.restart_count);
}

}  // namespace

StepWatch::StepWatch(const Run& run, const RunEvent& event)
    : node_(event.node),
      had_node_(run.has_node(event.node)),
      nodes_(run.node_count()),
      state_(run.state()),
      round_(run.round()),
      restart_count_(run.restart_count()) {
  if (const auto* lost = std::get_if<Lost>(&event.what)) {
    lost_by_ = lost->closed ? LostBy::kClosed : LostBy::kSilent;
    how_ = lost->how;
  } else if (std::holds_alternative<Tick>(event.what)) {
    lost_by_ = LostBy::kStuck;
    how_ = "nodes that could not stop their workers in time were given up";
  }
}

void StepWatch::take(const std::string& run_id, const Run& run, TimePoint now, Counters& counters,
                     std::vector<News>& news) const {
  const bool sealed = run.state() == Run::State::kRunning &&
                      (state_ != Run::State::kRunning || round_ != run.round());
  const bool ended = run.state() == Run::State::kEnded && state_ != Run::State::kEnded;
  if (!had_node_ && run.has_node(node_)) news.push_back({run_id, node_, "a node joined"});
  // Nodes that go once their run has ended are not lost.
  if (lost_by_ && run.node_count() < nodes_ && state_ != Run::State::kEnded) {
    counters.nodes_lost[static_cast<std::size_t>(*lost_by_)] += nodes_ - run.node_count();
    news.push_back({run_id, node_, *lost_by_ == LostBy::kStuck ? how_ : "a node is lost: " + how_,
                    /*is_trouble=*/true});
  }
  if (run.restart_count() > restart_count_) {
    counters.restarts += static_cast<std::uint64_t>(run.restart_count() - restart_count_);
  }
  if (sealed) {
    ++counters.rounds_sealed;
    news.push_back({run_id, "", sealed_text(run.status(now))});
  }
  if (ended && run.verdict()) {
    ++counters.verdicts[static_cast<std::size_t>(run.verdict()->kind)];
    news.push_back({run_id, "", "the run ended: " + run.verdict()->text,
                    run.verdict()->kind != Verdict::Kind::kSuccess});
  }
}

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
