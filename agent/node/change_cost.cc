#include "agent/node/change_cost.h"

#include <algorithm>

#include "common/text/figures.h"
#include "common/time.h"

namespace ddprun::agent {
namespace {

std::string lost_text(Milliseconds lost) {
  const bool brief = lost < std::chrono::seconds(1);
  return brief ? std::to_string(lost.count()) + " ms" : seconds_text(lost);
}

std::string steps_text(std::int64_t steps) {
  return std::to_string(steps) + (steps == 1 ? " step" : " steps");
}

std::string lost_steps_text(std::int64_t lost) {
  if (lost <= 0) return "no step is lost";
  return steps_text(lost) + (lost == 1 ? " is lost" : " are lost");
}

}  // namespace

ChangeCost::ChangeCost(const std::vector<int>& local_ranks, std::int64_t lost_steps)
    : workers_(static_cast<int>(local_ranks.size())),
      waited_for_(local_ranks.begin(), local_ranks.end()),
      lost_steps_(lost_steps) {}

std::optional<std::string> ChangeCost::resumed(int local_rank, const worker_link::Resumed& resumed,
                                               int world_size) {
  if (waited_for_.erase(local_rank) == 0) return std::nullopt;
  step_ = std::max(step_, resumed.step);
  repeated_ = std::max(repeated_, resumed.repeated);
  lost_us_ = std::max(lost_us_, resumed.lost_us);
  if (!waited_for_.empty()) return std::nullopt;
  if (lost_steps_ > 0) {
    return "no worker had the state of " + steps_text(lost_steps_) +
           ": the job begins again at step " + std::to_string(step_) + ", " +
           lost_steps_text(lost_steps_ - step_);
  }
  const std::string again = repeated_ == 0 ? ""
                                           : "; " + number_of(static_cast<int>(repeated_), "step") +
                                                 (repeated_ == 1 ? " runs again" : " run again");
  const std::string share = workers_ == world_size ? "" : std::to_string(workers_) + " of ";
  return share + number_of(world_size, "worker") + (world_size == 1 ? " continues" : " continue") +
         " at step " + std::to_string(step_) + " after " +
         lost_text(Milliseconds(lost_us_ / 1000)) + again;
}

}  // namespace ddprun::agent
