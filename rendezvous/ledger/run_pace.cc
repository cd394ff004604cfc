// The part of RunLedger that knows how fast the run is lately, and who holds it up.

#include <algorithm>

#include "rendezvous/ledger/run_ledger.h"

namespace ddprun::rendezvous {
namespace {

using Time = TimeParts::Time;

constexpr auto kPaceMin = std::chrono::seconds(2);  // Over less it would jump.
// Sync timers tell every so many steps who was late, at most (docs/sync-timer.md).
constexpr std::uint64_t kWindow = 32;

}  // namespace

void RunLedger::pace(Node& node, TimePoint now) {
  const bool others = node.paces.size() != node.places.size();
  if (!others && now - node.paced < kPaceMin) return;
  const double seconds = std::chrono::duration<double>(now - node.paced).count();
  node.paces.resize(node.places.size());
  for (std::size_t i = 0; i < node.places.size(); ++i) {
    Pace& pace = node.paces[i];
    const PlaceTimes& place = node.places[i];
    const Pace before = pace;
    pace.steps = place.steps, pace.late = place.late, pace.ran = place.ran;
    if (others) {  // Nobody knows since when.
      pace.late_by = place.steps;
      pace.steps_per_s = pace.cpu = 0, pace.late_a_step = Time{0};
      continue;
    }
    const std::uint64_t steps = place.steps - std::min(place.steps, before.steps);
    const Time ran = std::max(place.ran - before.ran, Time{0});  // It may be another process.
    pace.steps_per_s = static_cast<double>(steps) / seconds;
    pace.cpu = std::chrono::duration<double>(ran).count() / seconds;
    pace_late(pace, std::max(place.late - before.late, Time{0}));
  }
  node.paced = now;
}

// Where a window takes longer than the time between two reports, most of them know of no new one:
// the last holds until two could have ended.
void RunLedger::pace_late(Pace& pace, Time more) {
  const std::uint64_t since = pace.steps - std::min(pace.steps, pace.late_by);
  if (more > Time{0}) {
    pace.late_a_step = more / static_cast<std::int64_t>(std::max<std::uint64_t>(since, 1));
    pace.late_by = pace.steps;
  } else if (since > 2 * kWindow) {
    pace.late_a_step = Time{0};
    pace.late_by = pace.steps - kWindow;  // The next one will be about steps from there, at most.
  }
}

std::optional<RunLedger::Progress> RunLedger::progress() const {
  std::optional<Progress> furthest;
  for (const auto& [id, node] : nodes_) {
    for (std::size_t i = 0; i < node.places.size() && !node.lost; ++i) {
      if (node.places[i].steps == 0) continue;
      if (!furthest) furthest.emplace();
      furthest->step = std::max(furthest->step, node.places[i].steps);
      furthest->steps_left = std::max(furthest->steps_left, node.places[i].steps_left);
      furthest->steps_per_s = std::max(furthest->steps_per_s, node.paces[i].steps_per_s);
    }
  }
  return furthest;
}

std::vector<LateStatus> RunLedger::late() const {
  std::vector<LateStatus> all;
  for (const auto& [id, node] : nodes_) {
    for (std::size_t i = 0; i < node.places.size() && !node.lost && !ended_; ++i) {
      const Pace& pace = node.paces[i];
      const PlaceTimes& place = node.places[i];
      const std::chrono::duration<double, std::milli> late = pace.late_a_step;
      if (place.rank < 0 || !is_late(late.count(), pace.steps_per_s)) continue;
      all.push_back({.rank = place.rank,
                     .host = node.host,
                     .late_ms = late.count(),
                     .phase = {},
                     .late_s = std::chrono::duration<double>(place.late).count(),
                     .steps = place.late_steps});
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &LateStatus::late_ms);
  all.resize(std::min(all.size(), LateStatus::kMost));
  return all;
}

}  // namespace ddprun::rendezvous
