#include "launcher/guard/guardian_policy.h"

#include <signal.h>

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1000s};

TEST_CASE("Guardian policy: exit codes are a shell's", "[guardian]") {
  CHECK(exit_code_of({.exit_code = 7}) == 7);
  CHECK(exit_code_of({.signal = SIGKILL}) == 137);
  CHECK(describe({.exit_code = 7}) == "exited with code 7");
  CHECK(describe({.signal = SIGSEGV}) == "was killed by SIGSEGV");
  CHECK(describe({.signal = 40}) == "was killed by signal 40");
}

TEST_CASE("Guardian policy: a service starts again at once, then after longer and longer pauses",
          "[guardian]") {
  RespawnBudget budget(4, 60s);
  CHECK(budget.died(kStart).at == kStart);
  CHECK(budget.died(kStart + 1s).at == kStart + 1s + 200ms);
  CHECK(budget.died(kStart + 2s).at == kStart + 2s + 400ms);
  CHECK(budget.died(kStart + 3s).at == kStart + 3s + 800ms);
  CHECK(budget.used() == 4);
}

TEST_CASE("Guardian policy: a service that dies too often starts again when the window allows",
          "[guardian]") {
  RespawnBudget budget(2, 60s);
  CHECK_FALSE(budget.died(kStart).is_late);
  CHECK_FALSE(budget.died(kStart + 10s).is_late);  // It starts 0.2 s later.
  const auto third = budget.died(kStart + 20s);
  CHECK(third.is_late);
  CHECK(third.at == kStart + 60s);
  const auto fourth = budget.died(kStart + 61s);
  CHECK(fourth.is_late);
  CHECK(fourth.at == kStart + 70s + 200ms);
  CHECK_FALSE(budget.died(kStart + 300s).is_late);
  CHECK(
      service_died("the daemon (pid 4) was killed by SIGKILL", third, kStart + 20s, 2, 2) ==
      "the daemon (pid 4) was killed by SIGKILL; it dies too often, and is started again in 40 s. "
      "Running workers continue");
  CHECK(keeper_killed(4, third, kStart + 20s).find("another is started in 40 s") !=
        std::string::npos);
}

TEST_CASE("Guardian policy: a second Ctrl-C at a terminal means now", "[guardian]") {
  InterruptCounter typed;
  CHECK(!typed.signalled(SIGINT, Origin::kTerminal));
  CHECK(!typed.signalled(SIGTSTP, Origin::kTerminal));  // Ctrl-Z and fg in between.
  CHECK(typed.signalled(SIGINT, Origin::kTerminal));
  InterruptCounter mixed;
  CHECK(!mixed.signalled(SIGINT, Origin::kTerminal));
  CHECK(mixed.signalled(SIGQUIT, Origin::kTerminal));
}

TEST_CASE("Guardian policy: what processes send means now never, however often", "[guardian]") {
  InterruptCounter sent;
  for (int i = 0; i < 5; ++i) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      CHECK(!sent.signalled(signal, Origin::kProcess));
    }
  }
  // A wrapper at the same terminal passes on what it gets.
  CHECK(!sent.signalled(SIGINT, Origin::kTerminal));
  CHECK(!sent.signalled(SIGINT, Origin::kProcess));
  CHECK(sent.signalled(SIGINT, Origin::kNow));
}

TEST_CASE("Guardian policy: an end that somebody else has seen is a failure", "[guardian]") {
  CHECK(exit_code_of({.unseen = true}) == 1);
  CHECK_FALSE(is_done({.unseen = true}));  // A daemon is started again.
  CHECK(is_done({}));
  CHECK_FALSE(is_done({.exit_code = 3}));
  CHECK_FALSE(is_done({.signal = 9}));
  CHECK(describe({.unseen = true}) == "ended, and something else took its exit code");
}

}  // namespace
}  // namespace ddprun::launcher
