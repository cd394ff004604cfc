#include "launcher/watch/window_client.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

rendezvous::RunStatus running(int round, int ranks) {
  rendezvous::RunStatus status;
  status.state = ranks > 0 ? "running" : "gathering";
  status.round = round;
  status.world_size = ranks;
  return status;
}

std::string shown(const std::vector<RunHealth>& runs, const std::string& run_id = "") {
  const auto text = health_text(runs, run_id);
  return text ? *text : "not well: " + text.error().context;
}

TEST_CASE("Health: a line for each run whose agents answer", "[health]") {
  CHECK(shown({{"a", "", {running(3, 8)}}, {"b", "", {running(1, 0)}}}) ==
        "run a: running, round 3, 8 ranks\nrun b: gathering, round 1\n");
  CHECK(shown({{"a", "", {}}}) == "run a: in progress, without an agent\n");
}

TEST_CASE("Health: one agent that does not answer is enough", "[health]") {
  CHECK(shown({{"a", "", {running(3, 8)}}, {"b", "agent 7 is stopped", {running(1, 2)}}}) ==
        "not well: agent 7 is stopped");
}

TEST_CASE("Health: without a run this machine has nothing that could be well", "[health]") {
  CHECK(shown({}) == "not well: no run of yours is in progress on this machine");
  CHECK(shown({}, "job7") == "not well: no run 'job7' of yours is in progress on this machine");
}

}  // namespace
}  // namespace ddprun::launcher
