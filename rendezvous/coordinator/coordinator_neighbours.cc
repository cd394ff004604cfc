// The part of Coordinator that notices nodes that wait for each other under different run ids.

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

// Where more runs wait the daemon is a service, and that they do is no sign of a mistake.
constexpr std::size_t kNeighboursMax = 4;

}  // namespace

void Coordinator::compare_waiting(const std::string& run_id) {
  const auto run = runs_.find(run_id);
  const bool waits = run != runs_.end() && run->second.lacks_nodes();
  const bool waited = waiting_.contains(run_id);
  if (!waits && !waited) return;
  if (waits) {
    waiting_.insert(run_id);
  } else {
    waiting_.erase(run_id);
    if (run != runs_.end()) run->second.set_neighbour({});
  }
  for (const std::string& one : waiting_) {
    Run& here = runs_.at(one);
    std::string text;
    for (const std::string& other : waiting_) {
      const Run& there = runs_.at(other);
      if (other == one || !text.empty() || !here.could_be(there)) continue;
      if (waiting_.size() <= kNeighboursMax) text = "run " + other + " " + there.neighbour_text();
    }
    here.set_neighbour(text);
  }
}

}  // namespace ddprun::rendezvous
