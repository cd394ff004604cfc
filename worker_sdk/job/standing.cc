#include "worker_sdk/job/standing.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::elastic {

std::array<std::int64_t, Standing::kNumbers> Standing::numbers() const {
  return {static_cast<std::int64_t>(condition),
          committed,
          visited,
          target,
          closed,
          static_cast<std::int64_t>(signature),
          node,
          made,
          met,
          pace,
          saves};
}

Standing Standing::of(const std::int64_t* numbers) {
  return {.condition = static_cast<Condition>(numbers[0]),
          .committed = numbers[1],
          .visited = numbers[2],
          .target = numbers[3],
          .closed = numbers[4],
          .signature = static_cast<std::uint64_t>(numbers[5]),
          .node = numbers[6],
          .made = numbers[7],
          .met = numbers[8],
          .pace = numbers[9],
          .saves = numbers[10]};
}

namespace {

// The lowest rank with the newest state, among the ranks that have met others (`has_met`), or among
// those that have not and so hold a checkpoint; -1: none.
int newest(const std::vector<Standing>& by_rank, bool has_met) {
  const auto is_newer = [](const Standing& a, const Standing& b) {
    return a.met != b.met ? a.met > b.met : a.committed > b.committed;
  };
  int found = -1;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const Standing& one = by_rank[r];
    if (one.condition != Condition::kWhole || (one.met >= 0) != has_met) continue;
    if (found >= 0 && !is_newer(one, by_rank[static_cast<std::size_t>(found)])) continue;
    found = static_cast<int>(r);
  }
  return found;
}

// A rank that has missed a round, in reserve or cut off, may have committed a step that the others
// have given up and computed again since: its state no longer counts. A checkpoint counts if it is
// newer.
int source_of(const std::vector<Standing>& by_rank) {
  const int met = newest(by_rank, true), resumed = newest(by_rank, false);
  if (met < 0 || resumed < 0) return std::max(met, resumed);
  const auto steps = [&](int rank) { return by_rank[static_cast<std::size_t>(rank)].committed; };
  return steps(resumed) > steps(met) ? resumed : met;
}

}  // namespace

Settlement settle(const std::vector<Standing>& by_rank) {
  DDPRUN_ASSERT(!by_rank.empty());
  Settlement result;
  int torn = -1;
  const auto saves_nothing = [](const Standing& one) { return one.saves < 0; };
  const bool all_save = std::none_of(by_rank.begin(), by_rank.end(), saves_nothing);
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const Standing& one = by_rank[r];
    result.target = std::max(result.target, one.target);
    result.closed = std::max(result.closed, one.closed);  // Met by one, so met by all.
    if (one.signature != by_rank.front().signature && result.problem.empty()) {
      result.culprit = static_cast<int>(r);
      result.problem =
          "rank " + std::to_string(r) +
          " keeps other state than rank 0: names, their order or sizes differ, or "
          "check_every, even_shards, memory_every or audit of JobOptions (ddprun --audit), or "
          "ddprun's --bundle-every";
    }
    if (one.condition == Condition::kTorn) torn = static_cast<int>(r);
    if (one.condition == Condition::kWhole && one.met >= 0) result.is_lost = false;
    if (all_save) result.saves = std::max(result.saves, one.saves);
  }
  if (!result.problem.empty()) return result;
  const int source = source_of(by_rank);
  if (source < 0 && torn >= 0) {
    result.culprit = torn;
    result.is_torn = true;
    result.problem = "no rank has a whole state: commit() of rank " + std::to_string(torn) +
                     " has failed half-way, and so have those of all others that had one";
    return result;
  }
  result.source = std::max(source, 0);
  if (source >= 0) {
    result.committed = by_rank[static_cast<std::size_t>(source)].committed;
    result.made = by_rank[static_cast<std::size_t>(source)].made;
  }
  result.visited = result.committed;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const Standing& one = by_rank[r];
    if (lacks(one, result, static_cast<int>(r))) {
      result.has_lacking = true;
    } else {
      result.visited = std::min(result.visited, one.visited);
    }
  }
  return result;
}

bool lacks(const Standing& mine, const Settlement& settled, int rank) {
  if (rank == settled.source) return false;
  return mine.condition != Condition::kWhole || mine.committed != settled.committed ||
         mine.made != settled.made;
}

}  // namespace ddprun::elastic
