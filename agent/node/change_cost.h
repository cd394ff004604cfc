#pragma once
// What a change of the membership has cost those workers of this node that stay: one line, once the
// last of them continues. Pure. Owned by Agent, from the seat to that line.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/worker_link.h"

namespace ddprun::agent {

class ChangeCost {
 public:
  // Of the workers that have got seats of the round. `lost_steps`: as in the seat.
  explicit ChangeCost(const std::vector<int>& local_ranks, std::int64_t lost_steps = 0);

  // A worker continues. The line, if it is the last; `world_size`: of the round.
  std::optional<std::string> resumed(int local_rank, const worker_link::Resumed& resumed,
                                     int world_size);
  bool loses_steps() const { return lost_steps_ > step_; }

 private:
  int workers_ = 0;
  std::set<int> waited_for_;  // Local ranks.
  std::int64_t lost_steps_ = 0;
  std::int64_t step_ = 0;
  std::int64_t repeated_ = 0;
  std::int64_t lost_us_ = 0;
};

}  // namespace ddprun::agent
