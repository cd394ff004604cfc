// The sync timer with a synthetic clock: what it reports about steps with known times.

#include "worker_sdk/timer/sync_timer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "worker_sdk/timer/run_summary.h"
#include "worker_sdk/timer/sync_window.h"
#include "worker_sdk/timer/timer_shell.h"

namespace {

using namespace ddprun;
using namespace ddprun::worker_sdk;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Duration = std::chrono::nanoseconds;

StepTimes step_of(std::int64_t number, Duration outside, Duration forward, Duration backward,
                  Duration exposed, std::vector<Duration> buckets) {
  StepTimes step{.step = number,
                 .outside = outside,
                 .forward = forward,
                 .backward = backward,
                 .exposed = exposed,
                 .buckets = {}};
  for (const Duration comm : buckets) {
    step.buckets.push_back({.comm = comm, .bytes = 1'000'000});
  }
  return step;
}

// What the ranks' timers report together.
SyncWindow exchange(std::vector<SyncTimer>& ranks) {
  std::vector<float> sum;
  for (SyncTimer& rank : ranks) {
    REQUIRE(rank.window_full());
    const auto part = rank.contribution();
    sum.resize(part.size(), 0);
    for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  SyncWindow result;
  for (SyncTimer& rank : ranks) result = rank.analyse(sum);
  return result;
}

std::vector<SyncTimer> timers(int world, int window) {
  std::vector<SyncTimer> ranks;
  for (int r = 0; r < world; ++r) ranks.emplace_back(r, world, window);
  return ranks;
}

constexpr Duration kSlack = 1us;  // Times travel as floats.
void check_near(Duration a, Duration b) {
  INFO(a.count() << " against " << b.count() << " ns");
  CHECK(a <= b + kSlack);
  CHECK(b <= a + kSlack);
}

}  // namespace

TEST_CASE("Sync timer: what collectives took from the backward pass is exposed, not backward",
          "[sync_timer]") {
  const StepClock::time_point zero{};
  Phases phases(zero);
  phases.begin_backward(zero + 2ms);
  phases.begin_wait(zero + 12ms);
  StepTimes step = phases.end_step(zero + 15ms);
  CHECK(step.pass_begin == zero + 2ms);
  CHECK(step.pass_end == zero + 12ms);
  step.buckets = {{.started = zero + 8ms, .comm = 2ms}, {.started = zero + 11ms, .comm = 4ms}};
  const StepTimes before = step;

  charge_contention(step, {.delayed = 1ms, .collectives = 5ms});
  CHECK(step.contended == 1ms);
  CHECK(step.backward == 9ms);
  CHECK(step.exposed == 4ms);
  CHECK(step.whole() == before.whole());

  step = before;  // Collectives were under way for 3 ms of the pass: the rest had other causes.
  charge_contention(step, {.delayed = 5ms, .collectives = 5ms});
  CHECK(step.contended == 3ms);
  CHECK(step.exposed == 6ms);

  step = before;  // Read by another thread, or a clock that went back.
  charge_contention(step, {.delayed = -1ms, .collectives = 5ms});
  CHECK(step.contended == 0ms);
  CHECK(step.exposed == before.exposed);

  step = before;
  charge_contention(step, {.delayed = 1ms, .collectives = -5ms});
  CHECK(step.contended == 0ms);

  SyncTimer timer(0, 1, 0);
  step = before;
  charge_contention(step, {.delayed = 1ms, .collectives = 5ms});
  timer.record(step);
  timer.record(step);
  CHECK(timer.last().contended == 1ms);
  CHECK(timer.total().contended == 2ms);
  CHECK(timer.total().exposed == 8ms);
}

TEST_CASE("Sync timer: what other programs took from the backward pass is not exposed",
          "[sync_timer]") {
  const StepClock::time_point zero{};
  Phases phases(zero);
  phases.begin_backward(zero);
  phases.begin_wait(zero + 60ms);
  StepTimes step = phases.end_step(zero + 65ms);
  // Three ranks on two CPUs: from the first bucket on, its collective sleeps for the last rank.
  step.buckets = {{.started = zero + 5ms, .comm = 57ms}};
  charge_contention(step, {.delayed = 40ms, .collectives = 2ms});
  CHECK(step.contended == 2ms);
  CHECK(step.backward == 58ms);
  CHECK(step.exposed == 7ms);
}

TEST_CASE("Sync timer: the kernel's count of a thread's waits for a CPU is read", "[sync_timer]") {
  RunDelay delay;
  const auto first = delay.of_this_thread();
  if (!first) {
    WARN("this kernel does not count run delays");
    return;
  }
  CHECK(*first >= 0ns);
  const auto second = delay.of_this_thread();
  REQUIRE(second);
  CHECK(*second >= *first);
  std::optional<Duration> of_other;  // Of a thread that has just begun: its own, not this one's.
  std::thread([&] { of_other = delay.of_this_thread(); }).join();
  CHECK(of_other.has_value());
}

TEST_CASE("Phases: every moment of a step belongs to one phase") {
  const StepClock::time_point t0{};
  Phases phases(t0 + 5ms);
  phases.begin_forward(t0 + 7ms);
  phases.begin_backward(t0 + 10ms);
  phases.begin_backward(t0 + 11ms);
  phases.begin_wait(t0 + 20ms);
  const StepTimes step = phases.end_step(t0 + 24ms);
  CHECK(step.begin == t0 + 5ms);
  CHECK(step.outside == 2ms);
  CHECK(step.forward == 3ms);
  CHECK(step.backward == 10ms);
  CHECK(step.exposed == 4ms);
  CHECK(step.whole() == 19ms);
}

TEST_CASE("Phases: data and the optimizer are told apart from the rest of outside") {
  const StepClock::time_point t0{};
  Phases phases(t0);
  phases.begin_data(t0 + 1ms);
  phases.end_local(t0 + 4ms);
  phases.begin_forward(t0 + 6ms);
  phases.begin_backward(t0 + 7ms);
  const StepTimes step = phases.end_step(t0 + 9ms);
  CHECK(step.data == 3ms);
  CHECK(step.outside == 3ms);
  CHECK(step.whole() == 9ms);
  phases.begin_optimizer(t0 + 10ms);
  const StepTimes next = phases.end_step(t0 + 15ms);
  CHECK(next.optimizer == 5ms);
  CHECK(next.whole() == 6ms);
}

TEST_CASE("Phases: local passes belong to the step that synchronises them") {
  const StepClock::time_point t0{};
  Phases phases(t0);
  for (int pass = 0; pass < 3; ++pass) {
    const auto from = t0 + 10ms * pass;
    phases.begin_forward(from + 1ms);
    phases.begin_backward(from + 4ms);
    if (pass < 2) phases.end_local(from + 8ms);
  }
  phases.begin_wait(t0 + 30ms);
  const StepTimes step = phases.end_step(t0 + 31ms);
  CHECK(step.step == 0);
  CHECK(step.forward == 9ms);
  CHECK(step.backward == 14ms);
  CHECK(step.outside == 7ms);
  CHECK(step.whole() == 31ms);
  CHECK(phases.end_step(t0 + 40ms).step == 1);
}

TEST_CASE("Sync timer: a stalled rank is blamed with its phase and its delay") {
  auto ranks = timers(4, 3);
  for (int s = 0; s < 3; ++s) {
    for (int r = 0; r < 4; ++r) {
      const Duration stall = s == 1 && r == 2 ? 300ms : 0ms;
      const Duration wait = s == 1 && r != 2 ? 300ms : 0ms;
      // The others' first bucket takes as long as they wait for rank 2.
      ranks[static_cast<std::size_t>(r)].record(
          step_of(s, 1ms, 5ms + stall, 10ms, 1ms + wait, {2ms + wait, 3ms}));
    }
  }
  const SyncWindow w = exchange(ranks);
  REQUIRE(w.straggler);
  CHECK(w.straggler->rank == 2);
  CHECK(w.straggler->step == 1);
  CHECK(w.straggler->phase == StepPhase::forward);
  check_near(w.straggler->late, 300ms);
  CHECK(w.ranks[2].blamed == 1);
  CHECK(w.ranks[0].blamed == 0);
  check_near(w.ranks[0].waited, 100ms);
  check_near(w.ranks[2].waited, 0ms);
  check_near(w.ranks[2].comm, 5ms);
  check_near(w.waited, 75ms);
  check_near(w.step, 117ms);
  check_near(w.exposed_max, 301ms);
  check_near(w.exposed_p50, 1ms);
  CHECK_THAT(to_string(w), Contains("rank 2 was last in 1 of 3 steps, 300.0 ms each, in forward"));
}

TEST_CASE("Sync timer: who is late is told by all steps together, not by the single worst one") {
  auto ranks = timers(3, 8);
  for (int s = 0; s < 8; ++s) {
    const std::size_t late = s == 5 ? 1 : 2;  // Rank 2 always, but once a hiccup of rank 1.
    const Duration by = s == 5 ? 90ms : 25ms;
    for (std::size_t r = 0; r < 3; ++r) {
      const Duration more = r == late ? by : 0ms, wait = r == late ? 0ms : by;
      const auto phase = r == 1 ? 1 : 0;
      ranks[r].record(step_of(s, 1ms, 5ms + (phase == 0 ? more : 0ms),
                              10ms + (phase == 1 ? more : 0ms), 1ms + wait, {2ms + wait}));
    }
  }
  const SyncWindow w = exchange(ranks);
  REQUIRE(w.straggler);
  CHECK(w.straggler->rank == 2);
  CHECK(w.straggler->steps == 7);
  CHECK(w.straggler->phase == StepPhase::forward);
  check_near(w.straggler->late, 25ms);
  check_near(w.straggler->worst, 25ms);
  CHECK_THAT(to_string(w), Contains("rank 2 was last in 7 of 8 steps, 25.0 ms each, in forward"));

  const auto late = ranks[0].late_ranks();  // What --report shows of the whole run.
  REQUIRE(late.size() == 2);
  CHECK(late[0].rank == 2);
  CHECK(late[0].counts["steps"] == 7);
  check_near(std::chrono::nanoseconds(late[0].counts["forward_ns"]), 7 * 25ms);
  check_near(late[0].time(), 7 * 25ms);
  CHECK(late[1].rank == 1);
  check_near(std::chrono::nanoseconds(late[1].counts["backward_ns"]), 90ms);
  CHECK(ranks[2].counted().late == late[0].counts);
  CHECK(ranks[0].counted().late == LateCounts());
  CHECK(ranks[0].window_steps() == 8);
}

TEST_CASE("Sync timer: a step lost what those lost that did not come last") {
  auto ranks = timers(3, 2);
  for (int s = 0; s < 2; ++s) {
    ranks[0].record(step_of(s, 1ms, 2ms, 10ms, 52ms, {60ms}));
    ranks[1].record(step_of(s, 1ms, 2ms, 10ms, 52ms, {60ms}));
    ranks[2].record(step_of(s, 1ms, 2ms, 60ms, 2ms, {2ms}));
  }
  const SyncWindow w = exchange(ranks);
  check_near(w.lost, 52ms);
  check_near(w.lost_waiting, 52ms);  // They waited for 58 ms, 6 of them behind backward.
  check_near(w.hidden, 4ms);         // The mean of 6, 6 and 0.
  CHECK(w.lost >= w.lost_waiting);
  CHECK_THAT(to_string(w), Contains("made it 52.00 ms longer: 52.00 ms waiting for the last rank, "
                                    "0.00 ms transfer; 4.00 ms more of waiting hidden"));
}

TEST_CASE("Sync timer: what was waited in steps without a complete window is unknown") {
  auto ranks = timers(2, 2);
  for (int s = 0; s < 3; ++s) {
    ranks[0].record(step_of(s, 1ms, 2ms, 3ms, 6ms, {10ms}));
    ranks[1].record(step_of(s, 1ms, 2ms, 8ms, 1ms, {3ms}));
    if (s == 1) {
      CHECK(ranks[0].total().unknown == 12ms);
      exchange(ranks);
      CHECK(ranks[0].total().unknown == 0ms);
    }
  }
  CHECK(ranks[0].total().exposed == 18ms);
  CHECK(ranks[0].total().unknown == 6ms);
  check_near(ranks[0].total().waited, 12ms);
  SyncTimer alone(0, 1, 2);  // It waits for no rank.
  alone.record(step_of(0, 1ms, 2ms, 3ms, 6ms, {10ms}));
  CHECK(alone.total().unknown == 0ms);
}

TEST_CASE("Sync timer: nobody is blamed for what is lost in the noise") {
  auto ranks = timers(3, 1);
  for (int r = 0; r < 3; ++r) {
    const Duration noise = 200us * r;
    ranks[static_cast<std::size_t>(r)].record(step_of(0, 1ms, 5ms, 10ms, 1ms, {2ms + noise}));
  }
  const SyncWindow w = exchange(ranks);
  CHECK_FALSE(w.straggler);
  CHECK(w.ranks[0].blamed == 0);
}

TEST_CASE("Sync timer: bandwidth is that of the transfer, without the waiting") {
  auto ranks = timers(4, 3);
  for (int s = 0; s < 3; ++s) {
    for (int r = 0; r < 4; ++r) {
      ranks[static_cast<std::size_t>(r)].record(
          step_of(s, 0ms, 0ms, 5ms, 1ms, {r == 1 ? 2ms : 9ms}));
    }
  }
  const SyncWindow w = exchange(ranks);
  REQUIRE(w.buckets.size() == 1);
  CHECK(w.buckets[0].algbw == Approx(0.5));  // 1 MB in 2 ms.
  CHECK(w.buckets[0].busbw == Approx(0.75));
}

TEST_CASE("Sync timer: totals add up, and what was waited for peers is part of what is exposed") {
  auto ranks = timers(2, 2);
  for (int s = 0; s < 2; ++s) {
    ranks[0].record(step_of(s, 1ms, 2ms, 3ms, 6ms, {10ms}));
    ranks[1].record(step_of(s, 1ms, 2ms, 8ms, 1ms, {3ms}));
  }
  exchange(ranks);
  const SyncReport total = ranks[0].total();
  CHECK(total.steps == 2);
  CHECK(total.comm == 20ms);
  CHECK(total.exposed == 12ms);
  CHECK(total.overlapped() == 8ms);
  CHECK(total.bytes == 2'000'000);
  CHECK(total.unknown == 0ms);
  check_near(total.waited, 12ms);  // Waited for 7 ms a step, of which 6 were exposed.
  check_near(ranks[1].total().waited, 0ms);
}

TEST_CASE("Sync timer: the first windows are short, so that a short run knows half of its steps") {
  SyncTimer timer(0, 1, 32);
  std::vector<int> ends;
  for (int s = 1; s <= 128; ++s) {
    timer.record(step_of(s, 1ms, 1ms, 1ms, 1ms, {1ms}));
    if (!timer.window_full()) continue;
    timer.analyse(timer.contribution());
    ends.push_back(timer.window_steps());
    CHECK(ends.back() == s);
  }
  CHECK(ends == std::vector<int>{8, 16, 32, 64, 96, 128});
}

TEST_CASE("Sync timer: a window does not mix steps before and after the buckets were rebuilt") {
  SyncTimer timer(0, 1, 2);
  timer.record(step_of(0, 1ms, 1ms, 1ms, 1ms, {1ms}));
  timer.record(step_of(1, 1ms, 1ms, 1ms, 1ms, {1ms, 1ms}));
  CHECK_FALSE(timer.window_full());
  timer.record(step_of(2, 1ms, 1ms, 1ms, 1ms, {1ms, 1ms}));
  CHECK(timer.window_full());
  const auto w = timer.analyse(timer.contribution());
  CHECK(w.first_step == 1);
  CHECK(w.steps == 2);
}

TEST_CASE("Sync timer: the trace holds the last steps, and is JSON") {
  SyncTimer timer(3, 4, 0);
  for (int s = 0; s < 100; ++s) {
    StepTimes step = step_of(s, 1ms, 2ms, 3ms, 4ms, {2ms});
    step.begin = StepClock::time_point(10ms * s);
    step.buckets[0].launched = step.begin + 4ms;
    step.buckets[0].started = step.begin + 5ms;
    timer.record(step);
  }
  CHECK(timer.recent().size() == SyncTimer::kRecent);
  const auto text =
      chrome_trace({.rank = 3, .host = "node \"7\"", .wall_clock = 1s}, timer.recent());
  const auto json = nlohmann::json::parse(text);
  const auto& events = json.at("traceEvents");
  CHECK(events.size() == 4 + 64 * 6);
  CHECK(events[0].at("args").at("name") == "rank 3 (node \"7\")");
  const auto& bucket = events[4 + 4];
  CHECK(bucket.at("name") == "bucket 0");
  CHECK(bucket.at("ts") == 1'000'000 + 36 * 10'000 + 5'000);
  CHECK(bucket.at("dur") == 2'000);
  CHECK(bucket.at("args").at("bytes") == 1'000'000);
}

TEST_CASE("Sync timer: a window's JSON says what its text says") {
  auto ranks = timers(2, 1);
  ranks[0].record(step_of(0, 1ms, 2ms, 3ms, 4ms, {5ms}));
  ranks[1].record(step_of(0, 101ms, 2ms, 3ms, 0ms, {1ms}));
  const auto json = nlohmann::json::parse(to_json(exchange(ranks)));
  CHECK(json.at("ranks").size() == 2);
  CHECK(json.at("ranks")[0].at("waited_us") == 4000);
  CHECK(json.at("straggler").at("rank") == 1);
  CHECK(json.at("straggler").at("steps") == 1);
  CHECK(json.at("lost_us") == 4000);
  CHECK(json.at("straggler").at("phase") == "outside");
  CHECK(json.at("buckets")[0].at("bytes") == 1'000'000);
  CHECK(json.at("exposed_us") == 2000);
}

TEST_CASE("Sync timer: a step that one rank knows no times of is left out, and counted") {
  auto ranks = timers(2, 3);
  for (int s = 0; s < 3; ++s) {
    ranks[0].record(step_of(s, 1ms, 1ms, 5ms, 2ms, {4ms}));
    StepTimes step = step_of(s, 1ms, 1ms, 6ms, 1ms, {3ms});
    step.known = s != 1;
    if (!step.known) step.buckets[0].comm = 0ms;
    ranks[1].record(step);
  }
  const SyncWindow window = exchange(ranks);
  CHECK(window.steps == 2);
  CHECK(window.dropped == 1);
  check_near(window.step, 9ms);
  check_near(window.buckets.at(0).transfer, 3ms);
  CHECK(ranks[0].total().steps == 3);
  CHECK(ranks[1].total().steps == 2);
  CHECK(ranks[1].total().dropped == 1);
  check_near(ranks[0].total().waited, 2ms);
  CHECK(ranks[1].recent().size() == 2);

  auto blind = timers(1, 1);
  StepTimes unknown = step_of(0, 1ms, 1ms, 1ms, 1ms, {1ms});
  unknown.known = false;
  blind[0].record(unknown);
  CHECK(exchange(blind).steps == 0);
}
