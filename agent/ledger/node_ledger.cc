#include "agent/ledger/node_ledger.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/ledger/place_ledger.h"
#include "common/text/figures.h"
#include "common/time.h"

namespace ddprun::agent {
namespace {

using Time = TimeParts::Time;

constexpr std::size_t kDrawnMax = 512;  // Places; the pictures of more do not fit into a frame.

Time time_of(std::uint64_t ns) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::chrono::nanoseconds(kTimeMax).count());
  return std::chrono::duration_cast<Time>(
      std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(ns, kMost))));
}

std::uint64_t steps_left(const auto& counted) {
  return counted.expected - std::min(counted.expected, counted.steps);
}

TimeParts steps_since(const TimeParts& now, const TimeParts& before) {
  TimeParts more;
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    more.times[i] = std::max(now.times[i] - before.times[i], Time{0});
  }
  return more;
}

}  // namespace

WorkCounts work_counts(const SyncCounts& counts) {
  WorkCounts work;
  const std::uint64_t settled = std::min(counts["settled_ns"], counts["exposed_ns"]);
  const std::uint64_t waited = std::min(counts["waited_ns"], settled);
  work.startup = time_of(counts["startup_ns"]);
  work.checkpoint = time_of(counts["checkpoint_ns"]);
  work.saved = time_of(counts["saved_ns"]);
  work.stepped = time_of(counts["stepped_ns"]);
  work.steps[TimePart::kOutside] =
      time_of(counts["outside_ns"]) + time_of(counts["data_ns"]) + time_of(counts["optimizer_ns"]);
  work.steps[TimePart::kForward] = time_of(counts["forward_ns"]);
  work.steps[TimePart::kBackward] = time_of(counts["backward_ns"]);
  work.steps[TimePart::kWaiting] = time_of(waited);
  work.steps[TimePart::kTransfer] = time_of(settled - waited);
  work.steps[TimePart::kSteps] =
      time_of(counts["exposed_ns"] - settled) + time_of(counts["steps_ns"]);
  return work;
}

NodeLedger::NodeLedger(int places, TimePoint began) : began_(began) {
  DDPRUN_ASSERT(places >= 1);
  for (int local_rank = 0; local_rank < places; ++local_rank) {
    places_.emplace(local_rank, Place{.ledger = PlaceLedger(began)});
  }
}

NodeLedger::Place& NodeLedger::place(int local_rank) {
  // Of a spare, which comes later.
  const auto found =
      places_.try_emplace(local_rank, Place{.ledger = PlaceLedger(began_, TimePart::kGone)});
  return found.first->second;
}

TimePart NodeLedger::waits_as() const {
  if (spare_) return TimePart::kSpare;
  return computed_ ? TimePart::kRestart : TimePart::kRendezvous;
}

void NodeLedger::spawned(int local_rank, int rank, int round, TimePoint now,
                         const WorkerStart& start) {
  Place& here = place(local_rank);
  here.ledger.end(/*keeps=*/false, waits_as(), now);
  here.ledger.start(/*first_round=*/round == 0, now);
  begin_counting(here, now, start);
  here.rank = rank;
  computed_ = true;
  spare_ = false;
}

void NodeLedger::begin_counting(Place& place, TimePoint now, const WorkerStart& start) {
  place.past.add(place.counted);
  place.counted = {};
  place.counted_at = now;
  const auto took = std::chrono::duration_cast<Time>(start.took);
  place.starts.push_back({.preloaded = start.preloaded,
                          .spawn_us = std::clamp(took, Time{0}, Time(kTimeMax)).count()});
  if (place.starts.size() > kStartsMax) place.starts.erase(place.starts.begin());
}

void NodeLedger::replaced(int local_rank, TimePoint now, const WorkerStart& start) {
  begin_counting(place(local_rank), now, start);
}

void NodeLedger::seated(int local_rank, int rank, TimePoint now) {
  Place& here = place(local_rank);
  here.rank = rank;
  computed_ = true;
  spare_ = false;
  here.ledger.end(/*keeps=*/false, TimePart::kRestart, now);
  here.ledger.start_again(here.counted.work, now);
}

void NodeLedger::resumed(int local_rank, std::int64_t repeated, TimePoint now, std::int64_t step) {
  if (!first_step_) first_step_ = step;
  constexpr std::int64_t kMost = 1'000'000;  // A worker may report anything.
  Place& here = place(local_rank);
  here.repeated += static_cast<std::uint64_t>(std::clamp<std::int64_t>(repeated, 0, kMost));
  here.ledger.resume(here.counted.work, now);
}

// It is not known which steps were slow: of each kept part the same share is lost.
void NodeLedger::state_lost(std::int64_t steps, std::int64_t from) {
  const std::int64_t made = steps - std::exchange(first_step_, from).value_or(0);
  const std::int64_t lost =
      std::clamp<std::int64_t>(steps - from, 0, std::max<std::int64_t>(made, 0));
  if (lost == 0) return;
  const double share = static_cast<double>(lost) / static_cast<double>(made);
  for (auto& [local_rank, place] : places_) place.ledger.undo(share);
}

void NodeLedger::left(int local_rank, TimePoint now) {
  place(local_rank).ledger.end(/*keeps=*/false, TimePart::kRestart, now);
}

void NodeLedger::counted(int local_rank, const WorkerCounts& counts, TimePoint now) {
  Place& here = place(local_rank);
  const Counted before = std::exchange(
      here.counted, Counted{.work = work_counts(counts.sums),
                            .steps = std::max(counts.sums["steps"], counts.sums["commits"]),
                            .late_steps = counts.late["steps"],
                            .expected = counts.sums["expected"],
                            .late = std::chrono::duration_cast<Time>(late_time(counts.late)),
                            .shards = counts.sums["shards"],
                            .won = time_of(counts.sums["won_ns"])});
  if (!here.starts.empty()) {
    ProcessStart& start = here.starts.back();
    start.joining_us = time_of(counts.sums["joining_ns"]).count();
    start.met_us = time_of(counts.sums["met_ns"]).count();
    start.first_step_us = time_of(counts.sums["startup_ns"]).count();
  }
  here.ledger.see(here.counted.work);
  if (here.counted.work.steps == before.work.steps) return;
  const TimeParts more = steps_since(here.counted.work.steps, before.work.steps);
  const auto since = [this](TimePoint t) {
    return std::chrono::duration_cast<Time>(std::max(t, began_) - began_);
  };
  // Not longer ago than the steps took: before them the process may have started.
  const Time until = since(now);
  here.bins.add(std::max(since(here.counted_at), until - std::min(more.sum(), until)), until, more);
  here.counted_at = now;
}

void NodeLedger::in_reserve(int local_rank, TimePoint now) {
  Place& here = place(local_rank);
  if (!here.ledger.computes()) here.ledger.idle(TimePart::kSpare, now);
}

void NodeLedger::stopping(TimePoint now) {
  for (auto& [local_rank, place] : places_) place.ledger.stop(now);
}

void NodeLedger::ended(int local_rank, bool succeeded, TimePoint now) {
  place(local_rank).ledger.end(succeeded, succeeded ? TimePart::kGone : TimePart::kRestart, now);
}

void NodeLedger::spare(bool is_spare, TimePoint now) {
  if (std::exchange(spare_, is_spare) == is_spare) return;
  for (auto& [local_rank, place] : places_) {
    if (!place.ledger.computes()) place.ledger.idle(waits_as(), now);
  }
}

rendezvous::NodeTimes NodeLedger::times(bool whole, TimePoint now) const {
  rendezvous::NodeTimes times;
  for (const auto& [local_rank, place] : places_) {
    times.places.push_back({.local_rank = local_rank,
                            .rank = place.rank,
                            .parts = place.ledger.parts(now),
                            .at = place.ledger.at(now),
                            .at_risk = place.ledger.at_risk(now),
                            .steps = place.past.steps + place.counted.steps,
                            .late_steps = place.past.late_steps + place.counted.late_steps,
                            .late = place.past.late + place.counted.late,
                            .repeated = place.repeated,
                            .steps_left = steps_left(place.counted),
                            .shards = place.counted.shards,
                            .won = place.past.won + place.counted.won,
                            .starts = to_text(place.starts)});
    if (!whole || places_.size() > kDrawnMax) continue;
    times.places.back().spans = to_text(place.ledger.spans(now));
    times.places.back().bins = to_text(place.bins);
  }
  return times;
}

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
