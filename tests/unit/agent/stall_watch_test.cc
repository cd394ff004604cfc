#include "agent/health/stall_watch.h"

#include <catch2/catch.hpp>
#include <random>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// Workers that report, and a check every 15 s.
struct Node {
  StallWatch watch{StallOptions{}};
  TimePoint now{1h};
  std::vector<ProgressSample> samples;

  explicit Node(std::size_t workers) : samples(workers) {
    for (ProgressSample& sample : samples) sample.reports = true;
  }
  void at(std::size_t worker, const std::string& phase, bool in_collective, std::uint64_t number,
          Duration longest = 2s, std::uint64_t count = 100) {
    const std::uint64_t beats = samples[worker].beats + 1;
    samples[worker] = {true, beats, in_collective, phase, number, count, longest};
  }
  Lines check(Duration later = 15s) {
    now += later;
    const auto findings = watch.check(samples, now);
    Lines lines;
    for (const Stall& s : findings.stuck)
      lines.push_back(std::to_string(s.local_rank) + " " + s.what);
    for (const Stall& s : findings.going_on)
      lines.push_back(std::to_string(s.local_rank) + " " + s.what);
    if (findings.waiting) lines.push_back(*findings.waiting);
    return lines;
  }
  // The first words that come within `time`, and how long they took.
  Lines watch_for(Duration time, Duration* took = nullptr) {
    for (const TimePoint begin = now; now < begin + time;) {
      Lines lines = check();
      if (took) *took = now - begin;
      if (!lines.empty()) return lines;
    }
    return {};
  }
};

TEST_CASE("Stall: who does not come to a collective is stuck, who waits for it is not", "[stall]") {
  Node node(3);
  node.at(0, "all_reduce", true, 18);
  node.at(1, "", false, 17);
  node.at(2, "all_reduce", true, 18);
  Duration took{};
  CHECK(node.watch_for(10min, &took) ==
        Lines{"1 has made no progress since collective #17 for 180 s; its longest so far was 2 s; "
              "local ranks 0, 2 wait for it in all_reduce #18"});
  CHECK(took == 195s);                // First seen at the first look.
  CHECK(node.watch_for(2h).empty());  // Once is enough.
  node.at(1, "all_reduce", true, 18);
  CHECK(node.check() == Lines{"1 continues after 7395 s"});
}

TEST_CASE("Stall: a phase with a longer history has a longer limit, even if others wait",
          "[stall]") {
  Node node(2);
  node.at(0, "evaluate", false, 17, 1min);
  node.at(1, "barrier", true, 18, 1s);
  CHECK(node.watch_for(10min).empty());  // 10 times the longest.
  CHECK(node.watch_for(1min) ==
        Lines{"0 has been in evaluate for 600 s; its longest so far was 60 s; local rank 1 waits "
              "for it in barrier #18"});
}

TEST_CASE("Stall: where all wait, another node is named as the place to look", "[stall]") {
  Node node(2);
  node.at(0, "all_reduce", true, 18);
  node.at(1, "all_reduce", true, 18);
  CHECK(node.watch_for(10min) ==
        Lines{"workers here have waited in all_reduce #18 for 180 s, and none of this node is "
              "missing: check the other nodes"});
  CHECK(node.watch_for(1h).empty());
}

TEST_CASE("Stall: the first of a kind has more time, for there is no history", "[stall]") {
  Node node(1);
  node.at(0, "", false, 0, 0s, 0);
  CHECK(node.watch_for(30min).empty());
  CHECK(node.watch_for(1min) ==
        Lines{"0 has made no progress for 1800 s, and there is no history of it yet"});
}

TEST_CASE("Stall: a hang in the first steps is found, and a slow first step is none", "[stall]") {
  Node node(2);
  node.at(0, "forward", false, 0, 0s, 0);
  node.at(1, "forward", false, 0, 0s, 0);
  CHECK(node.watch_for(30s).empty());
  for (std::uint64_t step = 1; step <= 3; ++step) {  // The others take seconds.
    node.at(0, "forward", false, 0, 20s, step);
    node.at(1, "forward", false, 0, 20s, step);
    CHECK(node.watch_for(1min).empty());
  }
  node.at(1, "outside", false, 0, 1s, 3);
  node.at(0, "outside", false, 0, 1s, 3);
  Duration took{};
  const Lines reported = node.watch_for(30min, &took);
  REQUIRE(reported.size() == 2);
  CHECK(reported[0] ==
        "0 has been in outside for 360 s, early in the run; its longest so far was 1 s");
  CHECK(took == 375s);
}

TEST_CASE("Stall: a slow first of a phase gives those that follow their time", "[stall]") {
  Node node(1);
  node.at(0, "evaluate", false, 0, 0s, 0);
  CHECK(node.watch_for(4min).empty());
  node.at(0, "evaluate", false, 1, 0s, 1);  // Workers do not report how long the first ones took.
  CHECK(node.watch_for(38min).empty());     // Ten times the first.
  CHECK_FALSE(node.watch_for(4min).empty());
}

TEST_CASE("Stall: a limit does not learn a stall, but what ended well is borne the next time",
          "[stall]") {
  Node node(1);
  node.at(0, "save", false, 5, 1s);
  REQUIRE_FALSE(node.watch_for(10min).empty());
  node.at(0, "save", false, 6, 300s);
  node.check();
  CHECK(node.watch.limit_of(node.samples[0]) == 450s);  // Not 3000 s.
}

TEST_CASE("Stall: while we stand still ourselves nobody is blamed", "[stall]") {
  Node node(1);
  node.at(0, "", false, 5);
  node.check();
  CHECK(node.check(10h).empty());  // A machine that was suspended, an agent that was stopped.
  CHECK(node.watch_for(2min).empty());
  CHECK_FALSE(node.watch_for(2min).empty());
}

TEST_CASE("Stall: workers that report nothing, or nothing any more, are never stuck", "[stall]") {
  Node node(2);
  node.samples[0].reports = false;
  node.at(1, "", false, 5);
  REQUIRE(node.watch_for(10min).size() == 1);
  node.samples[1].reports = false;  // It has left its group, perhaps to save a file.
  CHECK(node.check() == Lines{"1 no longer reports, after 195 s"});
  CHECK(node.watch_for(24h).empty());
}

// A training loop: steps with a collective each, an evaluation or checkpoint now and then, jitter,
// machines that stand still. Times in the worker are exact; the watch sees it every 15 s.
class Training {
 public:
  explicit Training(std::uint64_t seed)
      : random_(seed), node_(2 + random_() % 7), sites_(node_.samples.size()) {
    step_ = 1ms * (20 + random_() % 30'000);
    evaluation_ = 1s * (1 + random_() % 300);
    every_ = 10 + random_() % 200;
  }

  // Runs for a while; returns what was reported. From `stuck_at` on the worker 0 stays where it is.
  Lines run(Duration time, Duration stuck_at = Duration::max(),
            Duration* reported_after = nullptr) {
    const TimePoint begin = node_.now;
    while (node_.now < begin + time) {
      const bool pause = random_() % 500 == 0;
      const Duration later = pause ? 1s * (random_() % 900) : Duration(15s);
      if (!pause) advance(node_.now + later, begin, stuck_at);
      Lines lines = node_.check(later);
      if (reported_after) *reported_after = node_.now - begin - stuck_at;
      if (!lines.empty()) return lines;
    }
    return {};
  }

 private:
  struct Kind {  // The history of one phase, as the worker's page has it.
    std::uint64_t count = 0;
    Duration longest{};
    void add(Duration took) {
      if (++count > 3) longest = std::max(longest, took);
    }
  };
  struct Site {  // Where a worker is.
    TimePoint begun{}, ends{};
    bool evaluates = false;
    Kind step, evaluation, wait;
    Kind& kind() { return evaluates ? evaluation : step; }
  };

  Duration jittered(Duration usual) {
    std::lognormal_distribution<double> spread(0.0, 0.5);
    return std::chrono::duration_cast<Duration>(usual * std::min(spread(random_), 8.0));
  }

  // All workers wait for the slowest at the end of each step.
  void advance(TimePoint until, TimePoint begin, Duration stuck_at) {
    while (barrier_ <= until) {
      next_step(barrier_ - begin > stuck_at);
    }
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      Site& site = sites_[i];
      if (site.ends > until || node_.samples[i].in_collective) continue;
      node_.at(i, "all_reduce", true, step_number_ + 1, site.wait.longest, site.wait.count);
    }
  }

  void next_step(bool stuck) {
    const bool evaluates = ++step_number_ % every_ == 0;
    const TimePoint start = barrier_;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      Site& site = sites_[i];
      if (step_number_ > 1) {
        site.kind().add(site.ends - site.begun);
        site.wait.add(start - site.ends);
      }
      site.evaluates = evaluates;
      site.begun = start;
      site.ends =
          start + (stuck && i == 0 ? Duration(1000h) : jittered(evaluates ? evaluation_ : step_));
      barrier_ = std::max(barrier_, site.ends);
      node_.at(i, evaluates ? "evaluate" : "", false, step_number_, site.kind().longest,
               site.kind().count);
    }
  }

  std::mt19937_64 random_;
  Node node_;
  std::vector<Site> sites_;
  Duration step_{}, evaluation_{};
  std::uint64_t every_ = 0, step_number_ = 0;
  TimePoint barrier_ = node_.now;
};

// A day is a matter of arithmetic, in one thread: a few show a sanitizer all that there is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kTrainings = 20;
#else
constexpr std::uint64_t kTrainings = 300;
#endif

TEST_CASE("Stall: hundreds of trainings of a day each raise no false alarm", "[stall][sim]") {
  for (std::uint64_t seed = 1; seed <= kTrainings; ++seed) {
    INFO("seed " << seed);
    CHECK(Training(seed).run(24h) == Lines{});
  }
}

TEST_CASE("Stall: in hundreds of trainings the worker that gets stuck is named, and no other",
          "[stall][sim]") {
  for (std::uint64_t seed = 1; seed <= kTrainings; ++seed) {
    INFO("seed " << seed);
    Duration reported_after{};
    const Lines lines = Training(seed).run(24h, 6h, &reported_after);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with("0 "));
    CHECK(reported_after < 12h);
  }
}

}  // namespace
}  // namespace ddprun::agent
