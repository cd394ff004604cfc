#include "worker_sdk/job/standing.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::elastic {

std::array<std::int64_t, Standing::kNumbers> Standing::numbers() const {
  return {static_cast<std::int64_t>(condition), committed, visited, target, closed,
          static_cast<std::int64_t>(signature), node};
}

Standing Standing::of(const std::int64_t* numbers) {
  return {.condition = static_cast<Condition>(numbers[0]),
          .committed = numbers[1],
          .visited = numbers[2],
          .target = numbers[3],
          .closed = numbers[4],
          .signature = static_cast<std::uint64_t>(numbers[5]),
          .node = numbers[6]};
}

Settlement settle(const std::vector<Standing>& by_rank) {
  DDPRUN_ASSERT(!by_rank.empty());
  Settlement result;
  int source = -1, torn = -1;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const Standing& one = by_rank[r];
    result.target = std::max(result.target, one.target);
    result.closed = std::max(result.closed, one.closed);  // Whoever has met all speaks for all.
    if (one.signature != by_rank.front().signature && result.problem.empty()) {
      result.culprit = static_cast<int>(r);
      result.problem = "rank " + std::to_string(r) +
                       " keeps other state than rank 0: names, their order or sizes differ";
    }
    if (one.condition == Condition::kTorn) torn = static_cast<int>(r);
    if (one.condition != Condition::kWhole) continue;
    if (source >= 0 && one.committed <= result.committed) continue;
    source = static_cast<int>(r);
    result.committed = one.committed;
  }
  if (!result.problem.empty()) return result;
  if (source < 0 && torn >= 0) {
    result.culprit = torn;
    result.is_torn = true;
    result.problem = "no rank has a whole state: commit() of rank " + std::to_string(torn) +
                     " has failed half-way, and so have those of all others that had one";
    return result;
  }
  result.source = std::max(source, 0);
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
  return mine.condition != Condition::kWhole || mine.committed != settled.committed;
}

}  // namespace ddprun::elastic
