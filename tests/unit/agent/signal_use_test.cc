#include "agent/supervisor/supervisor.h"

#include <signal.h>

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

constexpr int kLauncher = 100, kStranger = 200, kKernel = 0, kInit = 1;
const SignalRules kRules{
    .ends_node = {SIGTERM, SIGHUP, SIGURG}, .preempts = {SIGURG}, .launcher = kLauncher};

TEST_CASE("SignalUse: what ends the node may come from any process, other signals are forwarded",
          "[signal_use]") {
  for (const int sender : {kLauncher, kStranger, kKernel}) {
    CHECK(use_of(SIGTERM, sender, kLauncher, kRules) == SignalUse::kEndsNode);
    CHECK(use_of(SIGHUP, sender, kLauncher, kRules) == SignalUse::kEndsNode);
    CHECK(use_of(SIGTSTP, sender, kLauncher, kRules) == SignalUse::kForward);
  }
}

TEST_CASE("SignalUse: what a batch system sends to each process counts once, from the launcher",
          "[signal_use]") {
  for (const int sender : {kStranger, kKernel}) {
    for (const int signal : {SIGUSR1, SIGUSR2, SIGURG}) {
      CHECK(use_of(signal, sender, kLauncher, kRules) == SignalUse::kIgnore);
    }
  }
  CHECK(use_of(SIGUSR1, kLauncher, kLauncher, kRules) == SignalUse::kForward);
  CHECK(use_of(SIGURG, kLauncher, kLauncher, kRules) == SignalUse::kEndsNode);
}

TEST_CASE("SignalUse: nothing reaches workers once the launcher has died, such as a SIGHUP",
          "[signal_use]") {
  for (const int signal : {SIGHUP, SIGTERM, SIGUSR1, SIGCONT}) {
    CHECK(use_of(signal, kKernel, kInit, kRules) == SignalUse::kIgnore);
  }
}

TEST_CASE("SignalUse: an agent without a launcher obeys every process", "[signal_use]") {
  SignalRules alone = kRules;
  alone.launcher = 0;
  CHECK(use_of(SIGURG, kStranger, kInit, alone) == SignalUse::kEndsNode);
  CHECK(use_of(SIGUSR1, kStranger, kInit, alone) == SignalUse::kForward);
}

}  // namespace
}  // namespace ddprun::agent
