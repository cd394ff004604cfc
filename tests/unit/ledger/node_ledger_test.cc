#include "agent/ledger/node_ledger.h"

#include <catch2/catch.hpp>

#include "common/ledger/time_parts.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{50s};

std::uint64_t ns(std::chrono::nanoseconds time) { return static_cast<std::uint64_t>(time.count()); }

TEST_CASE("Node ledger: exposed time is waiting, transfer, or not known which") {
  const WorkCounts work = work_counts({{"exposed_ns", ns(10s)},
                                       {"settled_ns", ns(8s)},
                                       {"waited_ns", ns(5s)},
                                       {"steps_ns", ns(1s)}});
  CHECK(work.steps[TimePart::kWaiting] == 5s);
  CHECK(work.steps[TimePart::kTransfer] == 3s);
  CHECK(work.steps[TimePart::kSteps] == 3s);
  const WorkCounts nonsense = work_counts({{"settled_ns", ~0ULL}, {"waited_ns", ~0ULL}});
  CHECK(nonsense.steps.sum() == 0s);
}

TEST_CASE("Node ledger: a place goes through rounds, and its numbers outlive its processes") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 4, /*round=*/0, kStart + 1s);
  const WorkerCounts counts{.sums = {{"startup_ns", ns(1s)}, {"steps", 7}, {"forward_ns", ns(2s)}},
                            .late = {{"steps", 2}, {"forward_ns", ns(300ms)}}};
  ledger.counted(0, counts, kStart + 4s);
  ledger.stopping(kStart + 4s);
  ledger.ended(0, /*succeeded=*/false, kStart + 5s);
  ledger.spawned(0, 5, /*round=*/1, kStart + 6s);
  ledger.counted(0, counts, kStart + 9s);
  const rendezvous::NodeTimes times = ledger.times(/*whole=*/true, kStart + 9s);
  REQUIRE(times.places.size() == 1);
  const rendezvous::PlaceTimes& place = times.places[0];
  CHECK(place.rank == 5);
  CHECK(place.steps == 14);
  CHECK(place.late_steps == 4);
  CHECK(place.late == 600ms);
  CHECK(place.parts.sum() == 9s);
  CHECK(place.parts[TimePart::kLost] == 2s);
  CHECK(place.parts[TimePart::kRestart] == 3s);
  const auto bins = parse_time_bins(place.bins);
  REQUIRE(bins);
  CHECK((*bins->shares(2s, 4s))[1] == Approx(1).margin(0.1));
  CHECK(ledger.times(false, kStart + 9s).places[0].bins.empty());
}

// A place with a process that dies after 100 steps, all of them committed.
NodeLedger after_a_hundred_steps(std::int64_t began_at) {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, /*round=*/0, kStart);
  ledger.resumed(0, 0, kStart + 1s, began_at);
  const SyncCounts sums = {{"startup_ns", ns(1s)}, {"steps_ns", ns(10s)}, {"saved_ns", ns(10s)}};
  ledger.counted(0, {.sums = sums, .late = {}}, kStart + 11s);
  ledger.ended(0, /*succeeded=*/false, kStart + 11s);
  return ledger;
}

TEST_CASE("Node ledger: where a job's state is gone, the steps above its new beginning are lost") {
  const auto lost = [](NodeLedger ledger, std::int64_t steps, std::int64_t from) {
    ledger.state_lost(steps, from);
    return ledger.times(false, kStart + 11s).places[0].parts[TimePart::kLost];
  };
  CHECK(lost(after_a_hundred_steps(0), 100, 0) == 10s);
  CHECK(lost(after_a_hundred_steps(0), 100, 80) == 2s);    // A checkpoint has most of it.
  CHECK(lost(after_a_hundred_steps(40), 140, 40) == 10s);  // It began with that checkpoint.
  CHECK(lost(after_a_hundred_steps(40), 140, 0) == 10s);   // No more than there is.
  CHECK(lost(after_a_hundred_steps(0), 100, 100) == 0s);
  CHECK(lost(after_a_hundred_steps(0), 100, 170) == 0s);
}

TEST_CASE("Node ledger: parts of a start are kept for the latest processes of a place") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, /*round=*/0, kStart, {.preloaded = false, .took = 2ms});
  const SyncCounts first = {{"joining_ns", ns(1s)}, {"met_ns", ns(3s)}, {"startup_ns", ns(4s)}};
  ledger.counted(0, {.sums = first, .late = {}}, kStart + 5s);
  ledger.ended(0, /*succeeded=*/false, kStart + 6s);
  ledger.replaced(0, kStart + 7s, {.preloaded = true, .took = 5ms});
  CHECK(ledger.times(false, kStart + 8s).places[0].starts ==
        "0,2000,1000000,3000000,4000000;1,5000,0,0,0");
  for (int i = 0; i < 10; ++i) ledger.replaced(0, kStart + 9s);
  const auto starts = parse_process_starts(ledger.times(false, kStart + 9s).places[0].starts);
  REQUIRE(starts);
  CHECK(starts->size() == kStartsMax);
  CHECK_FALSE(starts->front().preloaded);
}

TEST_CASE("Node ledger: shards are those of the last step, and what was won is added up") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, /*round=*/0, kStart);
  ledger.counted(0, {.sums = {{"shards", 8}, {"won_ns", ns(2s)}}, .late = {}}, kStart + 1s);
  ledger.counted(0, {.sums = {{"shards", 9}, {"won_ns", ns(3s)}}, .late = {}}, kStart + 2s);
  CHECK(ledger.times(false, kStart + 2s).places[0].shards == 9);
  ledger.spawned(0, 0, /*round=*/1, kStart + 3s);
  CHECK(ledger.times(false, kStart + 3s).places[0].shards == 0);
  ledger.counted(0, {.sums = {{"won_ns", ns(1s)}}, .late = {}}, kStart + 4s);
  CHECK(ledger.times(false, kStart + 4s).places[0].won == 4s);
}

TEST_CASE("Node ledger: what is left is what the present process expects and has not made") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, /*round=*/0, kStart);
  // Of an elastic job only the commits are counted.
  ledger.counted(0, {.sums = {{"steps", 0}, {"commits", 3}}, .late = {}}, kStart + 1s);
  CHECK(ledger.times(/*whole=*/false, kStart + 1s).places.front().steps == 3);
  ledger.counted(0, {.sums = {{"steps", 7}, {"expected", 20}}, .late = {}}, kStart + 1s);
  CHECK(ledger.times(false, kStart + 1s).places[0].steps_left == 13);
  ledger.ended(0, /*succeeded=*/false, kStart + 1s);
  ledger.spawned(0, 0, /*round=*/1, kStart + 2s);
  CHECK(ledger.times(false, kStart + 2s).places[0].steps_left == 0);  // It has not reported yet.
  ledger.counted(0, {.sums = {{"steps", 9}, {"expected", 5}}, .late = {}}, kStart + 3s);
  CHECK(ledger.times(false, kStart + 3s).places[0].steps_left == 0);
  CHECK(ledger.times(false, kStart + 3s).places[0].steps == 16);
}

TEST_CASE("Node ledger: a node in reserve is a spare until it is seated") {
  NodeLedger ledger(2, kStart);
  ledger.spare(true, kStart + 1s);
  ledger.spare(true, kStart + 2s);
  ledger.spawned(0, 0, 1, kStart + 5s);
  ledger.spawned(1, 1, 1, kStart + 5s);
  const auto times = ledger.times(false, kStart + 6s);
  CHECK(times.places[1].parts[TimePart::kRendezvous] == 1s);
  CHECK(times.places[1].parts[TimePart::kSpare] == 4s);
  CHECK(times.places[1].at == TimePart::kUnknown);
}

TEST_CASE("Node ledger: the time of a spare is no loss") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, 0, kStart);
  ledger.replaced(1, kStart + 2s);  // No process was in its place before.
  ledger.in_reserve(1, kStart + 2s);
  ledger.ended(0, false, kStart + 5s);
  ledger.seated(1, 0, kStart + 6s);
  ledger.in_reserve(0, kStart + 6s);
  ledger.in_reserve(1, kStart + 6s);  // It computes.
  const auto times = ledger.times(false, kStart + 9s);
  CHECK(times.places[1].parts[TimePart::kGone] == 2s);
  CHECK(times.places[1].parts[TimePart::kSpare] == 4s);
  CHECK(times.places[0].parts[TimePart::kRestart] == 1s);
  CHECK(times.places[0].parts[TimePart::kSpare] == 3s);
}

TEST_CASE("Node ledger: a replacement costs restart until its first step in a round") {
  NodeLedger ledger(1, kStart);
  ledger.spawned(0, 0, 0, kStart);
  ledger.ended(0, false, kStart + 1s);
  ledger.replaced(0, kStart + 1s);
  ledger.seated(0, 0, kStart + 3s);
  const WorkerCounts counts{
      .sums = {{"startup_ns", ns(2s)}, {"steps_ns", ns(1s)}, {"saved_ns", ns(1s)}}};
  ledger.counted(0, counts, kStart + 4s);
  ledger.resumed(0, 2, kStart + 4s);
  CHECK(ledger.times(false, kStart + 4s).places[0].repeated == 2);
  const auto parts = ledger.times(false, kStart + 4s).places[0].parts;
  CHECK(parts[TimePart::kUnknown] == 1s);
  CHECK(parts[TimePart::kRestart] == 2s);
  CHECK(parts[TimePart::kSteps] == 1s);  // The first: it is known by its commit.
}

}  // namespace
}  // namespace ddprun::agent
