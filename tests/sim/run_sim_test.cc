#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;

// The seed sets the shape of the run, the number of faults and their pace, from a storm (one each
// 50 ms) to a drizzle (one each 6 s).
ClusterOptions options_of(std::uint64_t seed) {
  ClusterOptions options;
  options.seed = seed;
  options.hosts = 2 + static_cast<int>(seed % 4);
  options.config.nnodes_max = options.hosts - static_cast<int>(seed / 4 % 2);
  options.config.nnodes_min = seed % 3 == 0 ? options.config.nnodes_max : 1;
  options.config.max_restarts = static_cast<int>(seed / 7 % 4) * 3;
  options.config.last_call = 5s;
  options.config.join_timeout = 120s;
  return options;
}

// However bad it was, once there is peace every agent ends, no rank was started twice, and whoever
// heard the verdict heard the same one.
void run_seed(std::uint64_t seed) {
  Cluster cluster(options_of(seed));
  const Milliseconds pace(50 << seed % 8);
  const int faults = static_cast<int>(seed % 40);
  for (int fault = 0; fault < faults; ++fault) {
    cluster.run_for(pace);
    cluster.fault_at_random();
  }
  cluster.mend_everything();
  cluster.let_workers_finish();
  const bool over = cluster.run_until_over(20min);
  INFO("seed " << seed << "\n" << cluster.describe());
  REQUIRE(cluster.broken().empty());
  REQUIRE(over);
}

// DDPRUN_SIM_SEEDS, for a longer search or a shorter test, or what is usual.
std::uint64_t seeds(std::uint64_t usual) {
  const char* count = std::getenv("DDPRUN_SIM_SEEDS");
  return count ? std::stoull(count) : usual;
}

TEST_CASE("Run: whatever fails, no rank runs twice and every run ends", "[sim]") {
  if (const char* seed = std::getenv("DDPRUN_SIM_SEED")) return run_seed(std::stoull(seed));
  for (std::uint64_t seed = 1; seed <= seeds(3000); ++seed) run_seed(seed);
}

TEST_CASE("Run: without faults one round is enough and all exit with 0", "[sim]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    ClusterOptions options = options_of(seed);
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    Cluster cluster(options);
    cluster.let_workers_finish();
    INFO("seed " << seed << "\n" << cluster.describe());
    REQUIRE(cluster.run_until_over(60s));
    CHECK(cluster.rounds_started() == 1);
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  }
}

TEST_CASE("Run: a daemon that dies while workers compute costs no round", "[sim]") {
  for (std::uint64_t seed = 1; seed <= std::min<std::uint64_t>(200, seeds(200)); ++seed) {
    ClusterOptions options = options_of(seed);
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    Cluster cluster(options);
    cluster.run_for(5s);
    for (int kill = 0; kill < 10; ++kill) {
      cluster.kill_daemon(kill % 2 == 0);
      cluster.run_for(4s);
    }
    INFO("seed " << seed << "\n" << cluster.describe());
    CHECK(cluster.rounds_started() == 1);
    REQUIRE(cluster.broken().empty());
  }
}

TEST_CASE("Run: a daemon that stands still for a while costs no round", "[sim]") {
  for (std::uint64_t seed = 1; seed <= std::min<std::uint64_t>(200, seeds(200)); ++seed) {
    ClusterOptions options = options_of(seed);
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    Cluster cluster(options);
    cluster.run_for(5s);
    for (int stop = 0; stop < 10; ++stop) {
      cluster.stop_daemon(1500ms);
      cluster.run_for(4s);
    }
    INFO("seed " << seed << "\n" << cluster.describe());
    CHECK(cluster.rounds_started() == 1);
    REQUIRE(cluster.broken().empty());
  }
}

}  // namespace
}  // namespace ddprun::sim
