// A Supervisor keeps its invariants whatever the daemon says, and whenever.

#include <catch2/catch.hpp>
#include <csignal>
#include <random>

#include "agent/node/supervisor.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// Two workers that its agent starts, and ends as they like. What is random is what the daemon says,
// who dies when, and how the link fares.
class Node {
 public:
  explicit Node(unsigned seed) : random_(seed) {}

  void anything() {
    now_ += 1ms * (chance(90) ? random_() % 500 : random_() % 90'000);
    switch (random_() % 12) {
      case 0: return does(LinkUp{});
      case 1: return does(LinkDown{"it broke", chance(50)});
      case 2: return chance(10) ? does(Signalled{SIGTERM}) : void();
      case 3: return chance(2) ? does(LauncherDied{}) : void();
      case 4: return words_.empty() ? void() : say_words();
      case 5:
      case 6: return tick();
      case 7:
      case 8: return alive_ > 0 ? end_worker() : void();
      default: return hear();
    }
  }
  int starts() const { return starts_; }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }

  WorkerDeath death(int code) { return {.rank = alive_, .local_rank = alive_, .exit_code = code}; }

  void end_worker() {
    --alive_;
    const bool words = chance(30);
    WorkerDeath ended = death(words || chance(50) ? 7 : 0);
    ended.stopped_by_us = !words && !supervisor_.running() && chance(80);
    if (words) words_.push_back(ended);
    does(WorkerEnded{ended, words});
  }

  void say_words() {
    WorkerDeath account = words_.back();
    words_.pop_back();
    account.detail = "so it was";
    does(WordsCame{account});
  }

  void tick() {
    if (const auto due = supervisor_.deadline()) now_ = std::max(now_, *due);
    does(Tick{});
  }

  static rendezvous::Seat seat_of(int round) {
    rendezvous::Seat seat;
    seat.round = round;
    return seat;
  }

  void hear() {
    using namespace rendezvous;
    const int round = static_cast<int>(random_() % 4) + rounds_ - 2;
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: return ++rounds_, does(Heard{Assign{seat_of(round)}});
      case 3:
      case 4: return does(Heard{StopRound{round, "so it is", chance(30)}});
      case 5: return does(Heard{Alive{250ms, chance(50)}});
      case 6: return chance(10) ? does(Heard{EndRun{Verdict{.exit_code = 3}}}) : void();
      case 7: return chance(5) ? does(Heard{Dismiss{"its fans"}}) : void();
    }
  }

  void does(const Event& event) {
    bool over = false, fails = false;
    for (const Action& action : supervisor_.step(event, now_)) {
      over = over || std::holds_alternative<Exit>(action);
      if (std::holds_alternative<AbandonWorkers>(action)) alive_ = 0, words_.clear();
      if (!std::holds_alternative<StartWorkers>(action)) continue;
      REQUIRE(alive_ == 0);
      alive_ = 2;
      ++starts_;
      fails = chance(20);
    }
    supervisor_.check_invariants();
    if (over) *this = Node(static_cast<unsigned>(random_()), starts_);
    if (fails) does(StartFailed{{.local_rank = alive_ = static_cast<int>(random_() % 2)}});
  }

  Node(unsigned seed, int starts) : random_(seed), starts_(starts) {}

  std::mt19937 random_;
  TimePoint now_{};
  Supervisor supervisor_{{.host = "h", .local_world_size = 2, .fence = 60s, .fence_always = true},
                         now_};
  int alive_ = 0;
  std::vector<WorkerDeath> words_;  // Accounts that are still to come.
  int rounds_ = 0;
  int starts_ = 0;
};

TEST_CASE("Supervisor: whatever it hears, and whenever, its invariants hold", "[supervisor]") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Node node(seed);
    for (int i = 0; i < 2000; ++i) node.anything();
    CHECK(node.starts() > 20);
  }
}

TEST_CASE("Supervisor: nobody is killed while only words are waited for", "[supervisor]") {
  Supervisor supervisor({.host = "h", .local_world_size = 2}, TimePoint{});
  const auto step = [&](const Event& event, Duration at = 0s) {
    return supervisor.step(event, TimePoint{} + at);
  };
  (void)step(LinkUp{});
  (void)step(Heard{rendezvous::Assign{}});
  (void)step(WorkerEnded{{.rank = 1, .local_rank = 1, .exit_code = 7}, /*words_follow=*/true});
  CHECK(supervisor.deadline());
  CHECK(step(WorkerEnded{{.rank = 0, .signal = SIGTERM, .stopped_by_us = true}}).empty());
  CHECK_FALSE(supervisor.deadline());
  CHECK(step(Tick{}, 60s).empty());
}

}  // namespace
}  // namespace ddprun::agent
