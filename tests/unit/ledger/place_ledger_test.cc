#include "common/ledger/place_ledger.h"

#include <catch2/catch.hpp>
#include <random>


namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Time = TimeParts::Time;

constexpr TimePoint kStart{100s};

TimePoint at(Time time) { return kStart + time; }

WorkCounts work(Time startup, Time forward, Time waiting, Time saved = 0s, Time checkpoint = 0s) {
  WorkCounts counts{.startup = startup, .checkpoint = checkpoint, .saved = saved};
  counts.steps[TimePart::kForward] = forward;
  counts.steps[TimePart::kWaiting] = waiting;
  return counts;
}

// "rendezvous 2 startup 1": in seconds.
std::string shown(const TimeParts& parts) {
  std::string text;
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (parts.times[i] == 0us) continue;
    char part[64];
    std::snprintf(part, sizeof part, "%s%s %g", text.empty() ? "" : " ",
                  name_of(static_cast<TimePart>(i)),
                  std::chrono::duration<double>(parts.times[i]).count());
    text += part;
  }
  return text;
}

TEST_CASE("Ledger: a worker's time is what it has counted, and what is left is between steps") {
  PlaceLedger ledger(kStart);
  ledger.start(/*first_round=*/true, at(2s));
  CHECK(shown(ledger.parts(at(3s))) == "rendezvous 2 unknown 1");
  ledger.see(work(1s, 4s, 2s));
  CHECK(shown(ledger.parts(at(12s))) == "rendezvous 2 startup 1 outside 3 forward 4 waiting 2");
  ledger.end(/*keeps=*/true, TimePart::kGone, at(12s));
  CHECK(shown(ledger.parts(at(15s))) ==
        "rendezvous 2 startup 1 outside 3 forward 4 waiting 2 gone 3");
}

TEST_CASE("Ledger: what follows the last step of a process that ends well is its end") {
  PlaceLedger ledger(kStart);
  ledger.start(/*first_round=*/true, at(0s));
  WorkCounts counts = work(1s, 4s, 2s);
  counts.stepped = 7s;
  ledger.see(counts);
  CHECK(shown(ledger.parts(at(12s))) == "startup 1 outside 5 forward 4 waiting 2");
  PlaceLedger failed = ledger;
  ledger.end(/*keeps=*/true, TimePart::kGone, at(12s));
  CHECK(shown(ledger.parts(at(12s))) == "startup 1 outside 1 forward 4 waiting 2 end 4");
  CHECK(ledger.spans(at(12s)).back() == TimeSpan{TimePart::kEnd, 8s, 12s});
  failed.end(/*keeps=*/false, TimePart::kRestart, at(12s));
  CHECK(shown(failed.parts(at(12s))) == "startup 1 lost 11");
}

TEST_CASE("Ledger: a failure loses all since the last checkpoint, of each part the same share") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  ledger.see(work(1s, 8s, 2s, /*saved=*/5s));
  CHECK(ledger.at_risk(at(11s)) == 5s);
  ledger.end(/*keeps=*/false, TimePart::kRestart, at(11s));
  CHECK(shown(ledger.parts(at(12s))) == "startup 1 forward 4 waiting 1 lost 5 restart 1");
}

TEST_CASE(
    "Ledger: without a checkpoint all steps are lost, and a plain program's time is unknown") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  ledger.see(work(1s, 8s, 0s));
  ledger.end(false, TimePart::kRestart, at(10s));
  CHECK(shown(ledger.parts(at(10s))) == "startup 1 lost 9");
  PlaceLedger plain(kStart);
  plain.start(true, at(0s));
  plain.end(false, TimePart::kRestart, at(10s));
  CHECK(shown(plain.parts(at(10s))) == "unknown 10");
}

TEST_CASE("Ledger: from the order to end, time is that of the restart, as is all before a step") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  ledger.see(work(1s, 4s, 0s, /*saved=*/4s));
  ledger.stop(at(5s));
  CHECK(ledger.at(at(6s)) == TimePart::kRestart);
  ledger.end(false, TimePart::kRestart, at(8s));
  CHECK(shown(ledger.parts(at(8s))) == "startup 1 forward 4 restart 3");
  ledger.start(/*first_round=*/false, at(9s));
  ledger.see(work(2s, 3s, 0s));
  CHECK(shown(ledger.parts(at(14s))) == "startup 1 forward 7 restart 6");
}

TEST_CASE("Ledger: a worker that keeps its process loses the step that it did not commit") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  WorkCounts counts{.startup = 1s, .saved = 4s};
  counts.steps[TimePart::kSteps] = 4s;
  ledger.see(counts);
  ledger.end(false, TimePart::kRestart, at(6s));  // It leaves the round.
  CHECK(shown(ledger.parts(at(6s))) == "startup 1 steps 4 lost 1");
  ledger.start_again(counts, at(7s));
  CHECK(ledger.at(at(8s)) == TimePart::kRestart);
  counts.steps[TimePart::kSteps] = 5s;
  counts.saved = 8s;
  ledger.see(counts);
  ledger.resume(counts, at(9s));
  counts.steps[TimePart::kSteps] = 7s;
  counts.saved = 11s;
  ledger.see(counts);
  ledger.end(false, TimePart::kRestart, at(13s));
  CHECK(ledger.parts(at(13s)).sum() == 13s);
  CHECK(ledger.parts(at(13s))[TimePart::kRestart] == 3s);
  CHECK(ledger.parts(at(13s))[TimePart::kLost] == 2s);
}

TEST_CASE(
    "Ledger: kept steps whose state is gone are lost after all, but for those made safe before") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  ledger.see(work(1s, 8s, 2s, /*saved=*/10s));
  ledger.end(/*keeps=*/false, TimePart::kRestart, at(11s));
  ledger.undo(0.25);
  CHECK(shown(ledger.parts(at(11s))) == "startup 1 forward 6 waiting 1.5 lost 2.5");
  ledger.start(false, at(11s));
  ledger.see(work(1s, 4s, 0s, /*saved=*/4s));
  ledger.undo(1);  // What runs, and what it follows, is not meant.
  CHECK(shown(ledger.parts(at(16s))) == "startup 1 forward 10 waiting 1.5 lost 2.5 restart 1");
  ledger.end(/*keeps=*/true, TimePart::kGone, at(16s));
  ledger.undo(1);
  CHECK(shown(ledger.parts(at(16s))) == "startup 1 forward 6 waiting 1.5 lost 6.5 restart 1");
  CHECK(ledger.parts(at(16s)).sum() == 16s);
}

TEST_CASE("Ledger: what a page claims beyond the time that has passed is cut off") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(0s));
  ledger.see(work(kTimeMax, kTimeMax, kTimeMax, kTimeMax, kTimeMax));
  CHECK(ledger.parts(at(5s)).sum() == 5s);
  CHECK(ledger.at_risk(at(5s)) == 0s);
  ledger.see(work(1s, 2s, 0s));
  CHECK(shown(ledger.parts(at(5s))) == "startup 1 outside 2 forward 2");
}

TEST_CASE("Ledger: spans show what is no kept step, with its edges") {
  PlaceLedger ledger(kStart);
  ledger.start(true, at(2s));
  ledger.see(work(1s, 6s, 0s, /*saved=*/4s));
  ledger.stop(at(9s));
  ledger.end(false, TimePart::kRestart, at(10s));
  const auto spans = ledger.spans(at(11s));
  CHECK(to_text(spans) == "0,0,2000000;1,2000000,3000000;9,7000000,9000000;10,9000000,11000000");
  CHECK(parse_time_spans(to_text(spans)) == spans);
}

// Whatever happens in whatever order, every moment is in exactly one part.
TEST_CASE("Ledger: all parts add up to all time, whatever happens") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    PlaceLedger ledger(kStart);
    TimePoint now = kStart;
    WorkCounts counts;
    for (int event = 0; event < 40; ++event) {
      now += std::chrono::microseconds(upto(2'000'000));
      const auto more = [&] { return Time(upto(900'000)); };
      counts.startup = more();
      counts.saved += more();
      counts.checkpoint += more() / 8;
      for (Time& part : counts.steps.times) part += more() / 8;
      const int kind = upto(7);
      if (kind == 0 && !ledger.computes()) ledger.start(upto(2) == 0, now), counts = {};
      if (kind == 1 && !ledger.computes()) ledger.start_again(counts, now);
      if (kind == 2) ledger.see(counts);
      if (kind == 3) ledger.stop(now);
      if (kind == 4) ledger.end(upto(2) == 0, TimePart::kRestart, now);
      if (kind == 5) ledger.resume(counts, now);
      if (kind == 6 && !ledger.computes()) ledger.idle(TimePart::kSpare, now);
      const TimePoint later = now + Duration(upto(1'000'000'000));
      const auto passed = std::chrono::duration_cast<Time>(later - kStart);
      REQUIRE(ledger.parts(later).sum() == passed);
      for (const Time part : ledger.parts(later).times) REQUIRE(part >= 0us);
      REQUIRE(ledger.at_risk(later) >= 0us);
    }
  }
}

}  // namespace
}  // namespace ddprun
