#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>

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
  options.several_daemons = seed % 5 < 2;
  return options;
}

// However bad it was, once there is peace every agent ends, no rank was started twice, and all
// nodes that got a verdict got the same one. Returns how often workers were seated anew, or with
// relays how many streams were joined.
int run_storm(const ClusterOptions& options, bool preempts = false) {
  const std::uint64_t seed = options.seed;
  Cluster cluster(options);
  if (options.elastic && seed % 4 > 0) cluster.run_for(15s);  // All are ready by then.
  const Milliseconds pace(50 << seed % 8);
  const int faults = static_cast<int>(seed % 40);
  std::mt19937_64 preemptions(seed);
  for (int fault = 0; fault < faults; ++fault) {
    cluster.run_for(pace);
    cluster.fault_at_random();
    if (preempts) cluster.preempt_at_random(preemptions);
  }
  cluster.mend_everything();
  cluster.let_workers_finish();
  const bool over = cluster.run_until_over(20min);
  INFO(cluster.describe());
  REQUIRE(cluster.broken().empty());
  REQUIRE(over);
  return options.relays ? cluster.joined() : cluster.reseated();
}

// DDPRUN_SIM_`name`, or what is usual.
std::uint64_t wanted(const char* name, std::uint64_t usual) {
  const char* value = std::getenv((std::string("DDPRUN_SIM_") + name).c_str());
  return value ? std::stoull(value) : usual;
}

// SEED replays one seed. Else there are SEEDS of them, for a longer search or a shorter test, that
// begin with FIRST, for a search in pieces. True: as many as usual, so that what is rare has
// happened, too.
bool for_each_seed(std::uint64_t usual, const std::function<void(std::uint64_t)>& run) {
  const std::uint64_t one = wanted("SEED", 0);
  const std::uint64_t first = one ? one : wanted("FIRST", 1);
  const std::uint64_t count = one ? 1 : wanted("SEEDS", usual);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    INFO("seed " << seed);  // Also where an assertion of a state machine ends the program.
    run(seed);
  }
  return count >= usual;
}

TEST_CASE("Run: whatever fails, no rank runs twice and every run ends", "[sim]") {
  for_each_seed(3000, [](std::uint64_t seed) { (void)run_storm(options_of(seed)); });
}

ClusterOptions elastic_options_of(std::uint64_t seed) {
  ClusterOptions options = options_of(seed);
  options.elastic = true;
  options.local_world_size = 1 + static_cast<int>(seed / 11 % 4);
  options.plain_host = seed % 6 == 0 ? 1 : -1;
  options.config.join_at_restart = seed % 13 == 0;
  options.prepares = seed % 9 != 0;
  options.spares = seed % 5 == 0 ? 1 + static_cast<int>(seed % 2) : 0;
  return options;
}

ClusterOptions fixed_options_of(std::uint64_t seed) {
  ClusterOptions options = options_of(seed);
  options.config.nnodes_max = options.config.nnodes_min = options.hosts;
  return options;
}

TEST_CASE("Elastic: whatever fails, no rank runs twice and every run ends", "[sim]") {
  int reseated = 0;
  const bool usual = for_each_seed(3000, [&](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.hangs = true;
    reseated += run_storm(options);
  });
  UNSCOPED_INFO("workers seated anew: " << reseated);
  CHECK((reseated > 0 || !usual));
}

TEST_CASE("Relayed: whatever fails, who dials is answered, and ends of one stream are joined",
          "[sim]") {
  int joined = 0;
  const bool usual = for_each_seed(1000, [&](std::uint64_t seed) {
    ClusterOptions options = seed % 2 == 0 ? options_of(seed) : elastic_options_of(seed);
    options.relays = true;
    joined += run_storm(options);
  });
  UNSCOPED_INFO("streams joined: " << joined);
  CHECK((joined > 0 || !usual));
}

TEST_CASE("Pre-empted: whatever fails, no rank runs twice and every run ends", "[sim]") {
  for_each_seed(1000, [&](std::uint64_t seed) {
    ClusterOptions options = seed % 3 == 0 ? options_of(seed) : elastic_options_of(seed);
    options.hangs = seed % 3 != 0;
    (void)run_storm(options, /*preempts=*/true);
  });
}

TEST_CASE("Pre-empted: all nodes at once, each exits with 75", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = seed % 2 == 0 ? fixed_options_of(seed) : elastic_options_of(seed);
    options.plain_host = -1;
    options.hosted = options.quiet = true;
    Cluster cluster(options);
    cluster.run_for(seed % 5 == 0 ? 2s : 40s);  // Else all are ready.
    cluster.preempt_all(50ms);
    REQUIRE(cluster.run_until_over(60s));
    INFO(cluster.describe());
    for (int i = 0; i < options.hosts; ++i) CHECK(cluster.exit_code("h" + std::to_string(i)) == 75);
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE(
    "Pre-empted: the node that hosts the daemon costs the others neither a process nor a step",
    "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.quiet = options.hosted = true;
    options.spares = 0;
    options.config.nnodes_max = options.hosts;
    options.config.nnodes_min = 1;
    options.config.max_restarts = 100;  // One may fail at its end.
    const int world_size = options.hosts * options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    REQUIRE(cluster.world_size() == world_size);
    cluster.preempt("h0");
    cluster.run_for(1s);
    CHECK(cluster.world_size() == world_size - options.local_world_size);
    CHECK(cluster.is_up("h0"));  // For the daemon's sake.
    if (seed % 2 == 0) cluster.preempt("h1");
    cluster.run_for(200s);  // Longer than any fence.
    INFO(cluster.describe());
    CHECK(cluster.exit_code("h0") == 75);
    CHECK(cluster.fenced() == 0);
    CHECK(cluster.started() == world_size);
    CHECK(cluster.rounds_started() == (seed % 2 == 0 && options.hosts > 2 ? 3 : 2));
    REQUIRE(cluster.broken().empty());
    for (int i = 1; i < options.hosts; ++i) {
      const bool left = seed % 2 == 0 && i == 1;
      CHECK(cluster.is_up("h" + std::to_string(i)) != left);
    }
  });
}

TEST_CASE("Elastic: a death costs the survivors no process, and the world is full again", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.spares = 0;
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    options.config.max_restarts = 100;
    const int world_size = options.hosts * options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(30s);  // All are ready.
    for (std::uint64_t death = 0; death < 1 + seed % 5; ++death) {
      cluster.fail_worker("h" + std::to_string((seed + death) % 2));
      cluster.run_for(Milliseconds(seed % 3 == 0 ? 1 : seed * 37 % 3000));
    }
    cluster.run_for(120s);
    INFO(cluster.describe());
    REQUIRE(cluster.broken().empty());
    CHECK(cluster.world_size() == world_size);
    CHECK(cluster.started() == world_size);
    CHECK(cluster.spawned() <= cluster.failures() + cluster.killed());
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Elastic: a replacement that never gets ready is ended and replaced, beside the others",
          "[sim]") {
  int killed = 0;
  const bool usual = for_each_seed(100, [&](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.quiet = options.hangs = true;
    options.local_world_size = 3 + static_cast<int>(seed % 2);
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    options.config.max_restarts = 100;
    options.config.join_timeout = 20s;
    const int world_size = options.hosts * options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(30s);  // All are ready.
    for (std::uint64_t death = 0; death < 2; ++death) {
      cluster.fail_worker("h" + std::to_string((seed + death) % 2));
      cluster.run_for(5s);
    }
    cluster.run_for(120s);
    INFO(cluster.describe());
    REQUIRE(cluster.broken().empty());
    CHECK(cluster.world_size() == world_size);
    CHECK(cluster.started() == world_size);
    CHECK(cluster.failures() == 2 + cluster.killed());
    killed += cluster.killed();
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    CHECK(cluster.exit_statuses() == std::set<int>{0});
  });
  CHECK((killed > 0 || !usual));
}

TEST_CASE("Elastic: a node that leaves on purpose costs the others neither a process nor a step",
          "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.quiet = true;
    options.config.nnodes_max = options.hosts;
    options.config.nnodes_min = 1;
    options.config.max_restarts = 0;
    const int world_size = options.hosts * options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    REQUIRE(cluster.world_size() == world_size);
    for (int gone = 1; gone < options.hosts; ++gone) {
      const std::string host = "h" + std::to_string(gone);
      (seed + static_cast<std::uint64_t>(gone)) % 3 == 0 ? cluster.drain(host)
                                                         : cluster.preempt(host);
      cluster.run_for(5s);
      INFO(cluster.describe());
      REQUIRE(cluster.broken().empty());
      CHECK(cluster.world_size() == world_size - gone * options.local_world_size);
    }
    CHECK(cluster.fenced() == 0);
    CHECK(cluster.started() == world_size);
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Elastic: who computes waits for no worker of a node that comes", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.quiet = options.prepares = true;
    options.config.join_at_restart = false;
    options.config.nnodes_min = 1;
    options.config.nnodes_max = options.hosts + 1;
    options.config.max_restarts = 100;
    const int before = options.hosts * options.local_world_size;
    const int after = before + options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    REQUIRE(cluster.world_size() == before);
    cluster.boot("h" + std::to_string(options.hosts));
    cluster.run_for(20s);
    CHECK(cluster.world_size() == after);
    CHECK(cluster.fenced() == 0);
    const int rounds = cluster.rounds_started();
    CHECK(rounds == 2);
    cluster.boot("h" + std::to_string(options.hosts + 1));  // In reserve.
    cluster.run_for(20s);
    CHECK(cluster.rounds_started() == rounds);
    cluster.crash_agent("h1");
    cluster.run_for(30s);
    INFO(cluster.describe());
    CHECK(cluster.world_size() == after);
    CHECK(cluster.started() == before);  // All others began without a seat.
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Elastic: a node whose workers never get ready leaves, and disturbs nobody", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = options.hosts;
    options.quiet = options.prepares = true;
    options.config.nnodes_min = 1;
    options.config.nnodes_max = options.hosts + static_cast<int>(seed % 2);  // Else in reserve.
    options.config.max_restarts = 100;
    options.config.join_timeout = 20s;
    const std::string newcomer = "h" + std::to_string(options.hosts);
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    const int world_size = cluster.world_size();
    REQUIRE(world_size == options.hosts * options.local_world_size);
    cluster.boot(newcomer);
    cluster.run_for(2s);
    CHECK(cluster.is_up(newcomer));
    cluster.run_for(Milliseconds(options.config.join_timeout) + 10s);
    INFO(cluster.describe());
    CHECK(!cluster.is_up(newcomer));
    CHECK(cluster.world_size() == world_size);
    CHECK(cluster.rounds_started() == 1);
    CHECK(cluster.fenced() == 0);
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Elastic: with a spare a death leaves no seat empty", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.spares = 1 + static_cast<int>(seed % 2);
    options.quiet = true;
    options.config.nnodes_max = options.config.nnodes_min = options.hosts;
    options.config.max_restarts = 100;
    const int world_size = options.hosts * options.local_world_size;
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    for (std::uint64_t death = 0; death < 1 + seed % 5; ++death) {
      cluster.fail_worker("h" + std::to_string((seed + death) % 2));
      cluster.run_for(10s);  // The next spare is ready.
    }
    INFO(cluster.describe());
    REQUIRE(cluster.broken().empty());
    CHECK(cluster.world_sizes() == std::set<int>{world_size});
    CHECK(cluster.world_size() == world_size);
    CHECK(cluster.started() == world_size);
    CHECK(cluster.spawned() == options.hosts * options.spares + cluster.failures());
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Elastic: another size costs nobody a process or a step", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = elastic_options_of(seed);
    options.plain_host = -1;
    options.quiet = true;
    options.config.nnodes_min = 1;
    options.config.nnodes_max = options.hosts;
    options.config.max_restarts = 100;  // One may fail at its end.
    options.config.join_at_restart = false;
    Cluster cluster(options);
    cluster.run_for(40s);  // All are ready.
    for (const int nodes : {1, options.hosts, options.hosts - 1}) {
      cluster.resize(nodes);
      cluster.run_for(5s);
      INFO(cluster.describe());
      REQUIRE(cluster.broken().empty());
      CHECK(cluster.world_size() == nodes * options.local_world_size);
    }
    CHECK(cluster.fenced() == 0);
    CHECK(cluster.started() == options.hosts * options.local_world_size);
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Run: without faults one round is enough and all exit with 0", "[sim]") {
  for_each_seed(50, [](std::uint64_t seed) {
    Cluster cluster(fixed_options_of(seed));
    cluster.let_workers_finish();
    INFO(cluster.describe());
    REQUIRE(cluster.run_until_over(60s));
    CHECK(cluster.rounds_started() == 1);
    CHECK(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Run: a daemon that dies while workers compute costs no round", "[sim]") {
  for_each_seed(200, [](std::uint64_t seed) {
    Cluster cluster(fixed_options_of(seed));
    cluster.run_for(5s);
    for (int kill = 0; kill < 10; ++kill) {
      cluster.kill_daemon(kill % 2 == 0);
      cluster.run_for(4s);
    }
    INFO(cluster.describe());
    CHECK(cluster.rounds_started() == 1);
    REQUIRE(cluster.broken().empty());
  });
}

// Nothing happens but that processes stand still, for up to a minute, and packets are lost.
void stand_still(Cluster& cluster, std::uint64_t seed) {
  const std::string host = "h" + std::to_string(seed % 2);
  const Milliseconds a_while(seed % 5 == 0 ? 40'000 : 500 + seed * 37 % 9'500);
  if (seed % 7 == 0) cluster.spoil_cable(host);
  switch (seed % 4) {
    case 0:
      cluster.stop_daemon(a_while);
      if (a_while > 1500ms) cluster.break_link(host);  // Unnoticed by the daemon.
      return;
    case 1:
      cluster.stop_agent(host, a_while);
      if (seed % 8 == 1) return;
      cluster.run_for(1500ms);  // Then the daemon, for less than counts as a loss.
      return cluster.stop_daemon(Milliseconds(100 + seed * 17 % 1400));
    case 2: return cluster.stop_all(a_while);
    case 3: return cluster.stop_all(a_while / 2), cluster.stop_daemon(a_while);
  }
}

ClusterOptions still_options_of(std::uint64_t seed) {
  ClusterOptions options = fixed_options_of(seed);
  options.several_daemons = seed % 3 == 0;
  return options;
}

TEST_CASE("Run: no standstill of any process and no lost packet costs a round", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    Cluster cluster(still_options_of(seed));
    cluster.run_for(5s);
    for (std::uint64_t stop = 0; stop < 6; ++stop) {
      stand_still(cluster, seed * 13 + stop * 5);
      cluster.run_for(Milliseconds(500 + seed * 91 % 20'000));
    }
    INFO(cluster.describe());
    REQUIRE(cluster.rounds_started() == 1);
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    REQUIRE(cluster.exit_statuses() == std::set<int>{0});
    REQUIRE(cluster.broken().empty());
  });
}

TEST_CASE("Run: a worker's death in a standstill is neither forgotten nor counted twice", "[sim]") {
  for_each_seed(300, [](std::uint64_t seed) {
    ClusterOptions options = still_options_of(seed);
    options.config.max_restarts = static_cast<int>(seed % 3);
    Cluster cluster(options);
    cluster.run_for(5s);
    int deaths = 0;
    for (std::uint64_t stop = 0; stop < 3 && !cluster.over(); ++stop) {
      stand_still(cluster, seed * 13 + stop * 5);
      cluster.run_for(Milliseconds(seed * 53 % 9'000));
      cluster.fail_worker("h1");
      ++deaths;
      cluster.run_for(150s);
    }
    INFO(cluster.describe());
    const int restarts = std::min(deaths, options.config.max_restarts);
    REQUIRE(cluster.rounds_started() == 1 + restarts);
    cluster.let_workers_finish();
    REQUIRE(cluster.run_until_over(20min));
    const bool in_vain = deaths > options.config.max_restarts;
    REQUIRE((cluster.exit_statuses() == std::set<int>{0}) == !in_vain);
    REQUIRE(cluster.broken().empty());
  });
}

}  // namespace
}  // namespace ddprun::sim
