// What a Run gathers for its verdict: full accounts, the workers that ended well, and the failures
// of earlier rounds.

#include <signal.h>

#include <catch2/catch.hpp>
#include <tuple>

#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

WorkerDeath death(int rank, int code, Fault fault = Fault::kUnknown) {
  WorkerDeath death;
  death.rank = death.local_rank = rank;
  death.host = "a";
  death.exit_code = code;
  death.fault = fault;
  return death;
}

// One node of two workers.
struct OneNode {
  Run run;
  TimePoint now{std::chrono::hours(1)};

  DaemonMessage message_of(decltype(RunEvent::what) what) {
    const auto actions = run.step({"a", std::move(what)}, now += 1ms);
    run.check_invariants();
    // What it remembers survives the daemon.
    run = Run::restore(run.snapshot(now), now).value();
    REQUIRE(!actions.empty());
    return actions.back().message;
  }
  DaemonMessage joins(int after_round, int max_restarts = 1) {
    Join join;
    join.offer.host = "a";
    join.offer.local_world_size = 2;
    join.offer.config.max_restarts = max_restarts;
    join.after_round = after_round;
    return message_of(join);
  }
};

TEST_CASE("Run: the full account of a failure replaces the first word of it", "[run]") {
  OneNode node;
  node.joins(-1);
  node.message_of(Failed{0, death(1, 7)});
  node.joins(0);
  const auto stop = std::get<StopRound>(node.message_of(Failed{1, death(1, 8)}));
  CHECK(stop.final);
  CHECK(stop.restart == 0);
  WorkerDeath account = death(1, 8, Fault::kException);
  account.detail = "loss is NaN";
  const auto end = std::get<EndRun>(node.message_of(Stopped{1, {account}}));
  CHECK(end.verdict.first_cause->detail == "loss is NaN");
  CHECK(end.verdict.first_cause->fault == Fault::kException);
  CHECK(end.verdict.text.find("each time") == std::string::npos);  // 7, and then 8.
}

TEST_CASE("Run: what nodes do not reach is in the verdict of a failure that may come of it",
          "[run]") {
  const std::string line = "b does not reach a at 10.0.0.1 port 4001: a firewall?";
  const auto verdict_of = [&](const WorkerDeath& last, const std::string& early) {
    OneNode node;
    node.joins(-1);
    node.message_of(Failed{0, death(1, 1), 0, {}, "an earlier round"});
    node.joins(0);
    node.message_of(Failed{1, last, 0, {}, early});
    return std::get<EndRun>(node.message_of(Stopped{1, {last}, {}, line})).verdict;
  };
  WorkerDeath lost = death(1, 1, Fault::kTimedOut);
  const Verdict verdict = verdict_of(lost, "");
  CHECK(verdict.advice == line + ".");
  CHECK(verdict.text.find(line) != std::string::npos);
  CHECK(verdict_of(lost, line).advice == line + ".");  // Once.
  CHECK(verdict_of(lost, "a does not reach b").advice == "a does not reach b. " + line + ".");
  WorkerDeath own = death(1, 1, Fault::kException);
  own.detail = "RuntimeError: Timed out after 301 seconds waiting for clients";
  CHECK(verdict_of(own, "").advice.find(line) == 0);
  own.detail = "ZeroDivisionError: division by zero";
  CHECK(verdict_of(own, "").text.find("does not reach") == std::string::npos);
  CHECK(verdict_of(death(1, 1, Fault::kOutOfMemory), "").advice.find(line) == std::string::npos);
}

TEST_CASE("Run: a restart says its number, and failures that are alike are recognised", "[run]") {
  OneNode node;
  node.joins(-1);
  const auto stop = std::get<StopRound>(node.message_of(Failed{0, death(1, 7, Fault::kExit)}));
  CHECK_FALSE(stop.final);
  CHECK(stop.restart == 1);
  CHECK(stop.max_restarts == 1);
  node.joins(0);
  node.message_of(Failed{1, death(1, 7, Fault::kExit)});
  const auto end = std::get<EndRun>(node.message_of(Stopped{1, {death(1, 7, Fault::kExit)}}));
  CHECK(end.verdict.text.find("the same error each time") != std::string::npos);
}

TEST_CASE("Run: while a cause is lacking the nodes wait for those that leave", "[run]") {
  OneNode node;
  node.joins(-1, 0);
  WorkerDeath victim = death(0, 1, Fault::kPeerLost);
  victim.blames = 1;
  CHECK(std::get<StopRound>(node.message_of(Failed{0, victim})).awaits_cause);
  CHECK(std::get<StopRound>(node.message_of(Heartbeat{0})).awaits_cause);
  const auto judged = [&](const Stopped& stopped) {
    return std::get<EndRun>(node.message_of(stopped)).verdict;
  };
  WorkerDeath whole = victim;
  whole.detail = "rank 1 on a has left the job";
  SECTION("it exits with a code") {
    const Verdict verdict = judged({0, {whole, death(1, 3, Fault::kExit)}});
    CHECK(verdict.exit_code == 3);
    CHECK(verdict.first_cause->rank == 1);
    CHECK(verdict.victims.at(0).detail == whole.detail);
  }
  SECTION("it exits with 0") {
    const Verdict verdict = judged({0, {whole}, {death(1, 0)}});
    CHECK(verdict.exit_code == 1);
    CHECK(verdict.first_cause->fault == Fault::kLeftEarly);
    CHECK(verdict.first_cause->rank == 1);
  }
  SECTION("or another failure is reported") {
    CHECK(node.run.step({"a", Failed{0, death(1, 3)}}, node.now).empty());
    CHECK_FALSE(std::get<StopRound>(node.message_of(Heartbeat{0})).awaits_cause);
  }
}

TEST_CASE("Run: nobody waits where the first to fail is no victim", "[run]") {
  OneNode node;
  node.joins(-1, 0);
  CHECK_FALSE(std::get<StopRound>(node.message_of(Failed{0, death(0, 1)})).awaits_cause);
}

WorkerDeath death_at(const std::string& work, bool can_skip = false) {
  WorkerDeath result = death(1, 7);
  result.work = work;
  result.can_skip = can_skip;
  return result;
}

TEST_CASE("Run: what has ended two processes ends the run, restarts left or not", "[run]") {
  OneNode node;
  node.joins(-1, 9);
  const std::string work = "step 7, shard 3: sample 5";
  CHECK_FALSE(std::get<StopRound>(node.message_of(Failed{0, death_at(work)})).final);
  node.joins(0, 9);
  CHECK_FALSE(std::get<StopRound>(node.message_of(Failed{1, death_at("step 7, shard 4")})).final);
  node.joins(1, 9);
  CHECK(std::get<StopRound>(node.message_of(Failed{2, death_at(work)})).final);
  const auto end = std::get<EndRun>(node.message_of(Stopped{2, {death_at(work)}}));
  CHECK(end.verdict.text.find("It computed step 7, shard 3: sample 5. The same") !=
        std::string::npos);
}

TEST_CASE("Run: what has ended two processes is skipped if their job can do without it", "[run]") {
  OneNode node;
  CHECK(std::get<Assign>(node.joins(-1, 9)).seat.skip.empty());
  node.message_of(Failed{0, death_at("step 7, shard 3: sample 5", true)});
  CHECK(std::get<Assign>(node.joins(0, 9)).seat.skip.empty());
  const auto stop =
      std::get<StopRound>(node.message_of(Failed{1, death_at("step 7, shard 3: sample 5", true)}));
  CHECK_FALSE(stop.final);
  CHECK(stop.reason.find("; skipping step 7, shard 3: sample 5") != std::string::npos);
  const std::vector<std::string> skipped{"step 7, shard 3"};
  CHECK(std::get<Assign>(node.joins(1, 9)).seat.skip == skipped);
  // A third process that had begun it changes nothing.
  node.message_of(Failed{2, death_at("step 7, shard 3: sample 5", true)});
  CHECK(std::get<Assign>(node.joins(2, 9)).seat.skip == skipped);
}

TEST_CASE("Run: the next seats say what the process computed that has ended the round", "[run]") {
  OneNode node;
  CHECK(std::get<Assign>(node.joins(-1, 9)).seat.lost_work == LostWork{});
  node.message_of(Failed{0, death_at("step 7, shard 3: sample 5")});
  const LostWork lost = std::get<Assign>(node.joins(0, 9)).seat.lost_work;
  CHECK(lost.work == "step 7, shard 3: sample 5");
  CHECK(lost.who.starts_with("rank 1 on "));
  CHECK(lost.how == "exited with 7");
  node.message_of(Failed{1, death(1, 7)});
  CHECK(std::get<Assign>(node.joins(1, 9)).seat.lost_work == LostWork{});
}

TEST_CASE("Run: work that an exception has ended is not lost: its rank has written a bundle",
          "[run]") {
  const auto work_after = [](int code, int signal, Fault fault) {
    OneNode node;
    node.joins(-1, 9);
    WorkerDeath failed = death_at("step 7, shard 3");
    failed.exit_code = code, failed.signal = signal, failed.fault = fault;
    node.message_of(Failed{0, failed});
    return std::get<Assign>(node.joins(0, 9)).seat.lost_work.work;
  };
  CHECK(work_after(1, 0, Fault::kException).empty());
  CHECK(work_after(0, SIGABRT, Fault::kException).empty());  // Of C++.
  CHECK(work_after(1, 0, Fault::kGpuMemory).empty());
  CHECK(work_after(0, SIGABRT, Fault::kNoMemory).empty());
  for (const auto& [code, signal, fault] : {std::tuple{1, 0, Fault::kExit},
                                            {0, SIGABRT, Fault::kCrash},
                                            {0, SIGSEGV, Fault::kStackOverflow},
                                            {0, SIGKILL, Fault::kOutOfMemory}}) {
    CHECK(work_after(code, signal, fault) == "step 7, shard 3");
  }
}

TEST_CASE("Run: who had ended well is known to the verdict", "[run]") {
  OneNode node;
  node.joins(-1);
  node.message_of(Failed{0, death(1, 7)});
  node.joins(0);
  WorkerDeath victim = death(1, 97, Fault::kPeerLost);
  victim.blames = 0;
  node.message_of(Failed{1, victim});
  const auto end =
      std::get<EndRun>(node.message_of(Stopped{1, {victim}, {death(0, 0), death(0, 0)}}));
  CHECK(end.verdict.first_cause->rank == 0);
  CHECK(end.verdict.first_cause->fault == Fault::kLeftEarly);
  CHECK(end.verdict.exit_code == 97);
}

TEST_CASE("Run: a node that a spare could replace is told so", "[run]") {
  OneNode node;
  node.joins(-1);
  CHECK_FALSE(std::get<Alive>(node.message_of(Heartbeat{0})).replaceable);
  Join spare;
  spare.offer.host = "b";
  spare.offer.config.max_restarts = 1;
  (void)node.run.step({"b", spare}, node.now);
  CHECK(std::get<Alive>(node.message_of(Heartbeat{0})).replaceable);
}

}  // namespace
}  // namespace ddprun::rendezvous
