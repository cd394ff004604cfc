#include <catch2/catch.hpp>

#include "agent/supervisor/supervisor.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

std::optional<rendezvous::Failed> failed_in(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    const auto* send = std::get_if<SendMessage>(&action);
    const auto* failed = send ? std::get_if<rendezvous::Failed>(&send->message) : nullptr;
    if (failed) return *failed;
  }
  return std::nullopt;
}

TEST_CASE("Supervisor: the daemon is told when a failure was noticed, on every link",
          "[supervisor]") {
  TimePoint now{10s};
  Supervisor supervisor({.host = "h", .clock = "this boot"}, now);
  (void)supervisor.step(LinkUp{}, now);
  rendezvous::Seat seat;
  seat.round = 0;
  (void)supervisor.step(Received{rendezvous::Assign{seat}}, now);
  WorkerEnded ended{{.pid = 10, .exit_code = 7}};
  ended.noticed = now + 2ms;
  const auto reported = failed_in(supervisor.step(ended, now + 5ms));
  REQUIRE(reported);
  CHECK(reported->noticed == 10'002'000);
  CHECK(reported->clock == "this boot");
  (void)supervisor.step(LinkDown{"reset"}, now + 6ms);
  const auto again = failed_in(supervisor.step(LinkUp{}, now + 1s));
  REQUIRE(again);
  CHECK(again->noticed == 10'002'000);
}

}  // namespace
}  // namespace ddprun::agent
