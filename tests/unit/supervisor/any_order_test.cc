// A Supervisor keeps its invariants whatever the daemon sends, and whenever.

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <optional>
#include <random>

#include "agent/supervisor/supervisor.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// Two workers that its agent starts, and ends as they like. Random are the daemon's messages, which
// workers get ready, leave and die when, and the fate of the link.
class Node {
 public:
  explicit Node(unsigned seed, bool elastic = false) : random_(seed), elastic_(elastic) {
    options_.host = "node7";
    options_.spares = elastic ? static_cast<int>(seed % 2) : 0;
    supervisor_.emplace(options_, now_);
  }

  void anything() {
    now_ += 1ms * (chance(elastic_ ? 98 : 90) ? random_() % 500 : random_() % 90'000);
    switch (random_() % (elastic_ ? 19 : 12)) {
      case 0: return linked_ ? void() : does(LinkUp{});
      case 1: return chance(elastic_ ? 30 : 100) ? does(LinkDown{"it broke", chance(50)}) : void();
      case 2: return chance(10) ? does(Signalled{chance(50) ? SIGTERM : SIGUSR1}) : void();
      case 3: return chance(2) ? does(LauncherDied{}) : void();
      case 4: return words_.empty() ? void() : deliver_output();
      case 5:
      case 6: return tick();
      case 7:
      case 8: return chance(elastic_ ? 15 : 100) ? end_worker() : void();
      case 12:
      case 13:
      case 14: return does(WorkerReady{place()});
      case 15:
      case 16: return does(WorkerLeft{place(), supervisor_->round()});
      case 18: return does(WorkerResumed{place(), supervisor_->round()});
      case 17: return chance(5) ? does(WorkerPlain{place()}) : void();
      default: return receive();
    }
  }
  int starts() const { return starts_; }
  int reseated() const { return reseated_; }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  int place() { return static_cast<int>(random_() % static_cast<unsigned>(2 + options_.spares)); }

  void end_worker() {
    int local_rank = elastic_ ? place() : 1;
    if (pids_[local_rank] == 0) local_rank = local_rank == 0 ? 1 : 0;
    const int pid = std::exchange(pids_[local_rank], 0);
    if (pid == 0) return;
    const bool words = chance(30);
    WorkerDeath ended{.rank = local_rank, .local_rank = local_rank, .pid = pid};
    ended.exit_code = words || chance(50) ? 7 : 0;
    if (!ended.succeeded() && chance(30)) ended.fault = Fault::kPeerLost;
    const bool stopping = supervisor_->grace_ends() || supervisor_->signalled() != 0;
    ended.stopped_by_us = !words && (elastic_ ? stopping && chance(50) && !supervisor_->running()
                                              : !supervisor_->running() && chance(80));
    if (words) words_.push_back(ended);
    does(WorkerEnded{ended, words});
  }

  void deliver_output() {
    WorkerDeath account = words_.back();
    words_.pop_back();
    account.detail = "so it was";
    does(LastOutput{account});
  }

  void tick() {
    if (const auto due = supervisor_->deadline()) now_ = std::max(now_, *due);
    does(Tick{});
  }

  rendezvous::Seat seat_of(int round) {
    rendezvous::Seat seat;
    seat.round = round;
    seat.workers = elastic_ ? offered_ : 0;
    return seat;
  }

  rendezvous::StopRound stop_of(int round) {
    rendezvous::StopRound stop{round, "so it is", chance(elastic_ ? 5 : 30)};
    stop.keep = elastic_ && !stop.final && chance(80);
    stop.planned = stop.keep && chance(40);
    stop.restart = elastic_ && chance(30) ? 1 : 0;
    stop.awaits_cause = chance(40);
    return stop;
  }

  void receive() {
    using namespace rendezvous;
    const bool right = elastic_ && supervisor_->round() >= 0 && chance(70);
    const int round = right ? supervisor_->round() : static_cast<int>(random_() % 4) + rounds_ - 2;
    switch (random_() % (elastic_ ? 9 : 8)) {
      case 8: return does(Received{Prepare{1}});
      case 0:
      case 1:
      case 2: return ++rounds_, does(Received{Assign{seat_of(round)}});
      case 3:
      case 4: return does(Received{stop_of(round)});
      case 5: return does(Received{Alive{250ms, chance(50), elastic_}});
      case 6: return chance(10) ? does(Received{EndRun{Verdict{.exit_code = 3}}}) : respawn();
      case 7:
        return chance(5) ? does(Received{Dismiss{"its fans", chance(50), chance(30)}}) : void();
    }
  }

  void respawn() {
    if (elastic_) does(Received{rendezvous::Respawn{place() + ++granted_, 1, granted_ % 2}});
  }

  void start(int local_rank) {
    REQUIRE(pids_[local_rank] == 0);
    pids_[local_rank] = ++processes_;
  }

  // The daemon puts the host before it: "node7 left: ...".
  static void check_reason(const rendezvous::AgentMessage& message) {
    const auto* leave = std::get_if<rendezvous::Leave>(&message);
    if (leave) CHECK(leave->reason.find("node7") == std::string::npos);
  }

  void does(const Event& event) {
    if (std::holds_alternative<LinkUp>(event)) linked_ = true;
    if (std::holds_alternative<LinkDown>(event)) linked_ = false;
    bool over = false, fails = false;
    for (const Action& action : supervisor_->step(event, now_)) {
      over = over || std::holds_alternative<Exit>(action);
      if (std::holds_alternative<AbandonWorkers>(action)) pids_ = {}, words_.clear();
      if (const auto* join = std::get_if<SendJoin>(&action)) offered_ = join->workers;
      if (const auto* spawn = std::get_if<SpawnWorker>(&action)) start(spawn->local_rank);
      if (const auto* seat = std::get_if<SeatWorkers>(&action)) check_seats(*seat);
      if (const auto* send = std::get_if<SendMessage>(&action)) check_reason(send->message);
      if (!std::holds_alternative<StartWorkers>(action)) continue;
      start(0), start(1);
      ++starts_;
      fails = chance(elastic_ ? 2 : 20);
    }
    supervisor_->check_invariants();
    if (over) return begin_again();
    if (!fails) return;
    const int first = static_cast<int>(random_() % 2);
    for (int i = first; i < 2; ++i) pids_[i] = 0;
    does(StartFailed{{.local_rank = first}});
  }

  void check_seats(const SeatWorkers& seat) {
    REQUIRE(std::ssize(seat.local_ranks) == seat.seat.workers);
    for (const int local_rank : seat.local_ranks) REQUIRE(pids_[local_rank] > 0);
    ++reseated_;
  }

  void begin_again() {
    supervisor_.emplace(options_, now_);
    pids_ = {};
    words_.clear();
    linked_ = false;
    rounds_ = granted_ = 0;
  }

  std::mt19937 random_;
  bool elastic_;
  bool linked_ = false;
  TimePoint now_{};
  SupervisorOptions options_{.host = "h",
                             .local_world_size = 2,
                             .fence = 60s,
                             .fence_always = true,
                             .preempt_signals = {SIGUSR1}};
  std::optional<Supervisor> supervisor_{std::in_place, options_, now_};
  std::array<int, 3> pids_{};       // By local rank, the last of a spare; 0: no process.
  std::vector<WorkerDeath> words_;  // Accounts that are still to come.
  int rounds_ = 0, granted_ = 0, offered_ = 2, processes_ = 0;
  int starts_ = 0, reseated_ = 0;
};

TEST_CASE("Supervisor: whatever it hears, and whenever, its invariants hold", "[supervisor]") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Node node(seed);
    for (int i = 0; i < 2000; ++i) node.anything();
    CHECK(node.starts() > 20);
  }
}

TEST_CASE("Supervisor: the same with workers that can be seated anew", "[supervisor]") {
  int reseated = 0;
  for (unsigned seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Node node(seed, /*elastic=*/true);
    for (int i = 0; i < 4000; ++i) node.anything();
    CHECK(node.starts() > 0);
    reseated += node.reseated();
  }
  CHECK(reseated > 30);
}

TEST_CASE("Supervisor: nobody is killed while only words are waited for", "[supervisor]") {
  Supervisor supervisor({.host = "h", .local_world_size = 2}, TimePoint{});
  const auto step = [&](const Event& event, Duration at = 0s) {
    return supervisor.step(event, TimePoint{} + at);
  };
  (void)step(LinkUp{});
  (void)step(Received{rendezvous::Assign{}});
  (void)step(WorkerEnded{{.rank = 1, .local_rank = 1, .exit_code = 7}, /*output_follows=*/true});
  CHECK(supervisor.deadline());
  CHECK(step(WorkerEnded{{.rank = 0, .signal = SIGTERM, .stopped_by_us = true}}).empty());
  CHECK_FALSE(supervisor.deadline());
  CHECK(step(Tick{}, 60s).empty());
}

}  // namespace
}  // namespace ddprun::agent
