#include "agent/health/sync_ledger.h"

#include <catch2/catch.hpp>
#include <limits>

namespace ddprun::agent {
namespace {

using rendezvous::LateRank;
using rendezvous::SyncCounts;

SyncSample steps(std::uint64_t count) { return {.steps = count, .exposed_ns = 10 * count}; }

TEST_CASE("Sync ledger: each step is told once, of all workers together", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.began(0);
  ledger.began(1);
  ledger.see(0, 8, {});
  CHECK_FALSE(ledger.untold());
  ledger.see(0, 8, steps(5));
  ledger.see(1, 9, steps(7));
  REQUIRE(ledger.untold());
  CHECK(*ledger.untold() == SyncCounts{.steps = 12, .exposed_ns = 120});
  ledger.see(0, 8, steps(6));  // Nobody was told yet.
  CHECK(ledger.untold()->steps == 13);
  ledger.told();
  CHECK_FALSE(ledger.untold());
  ledger.see(1, 9, steps(7));
  CHECK_FALSE(ledger.untold());
  ledger.see(1, 9, steps(8));
  CHECK(*ledger.untold() == SyncCounts{.steps = 1, .exposed_ns = 10});
}

TEST_CASE("Sync ledger: a worker that is started again counts from zero", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.began(0);
  ledger.see(0, 8, steps(5));
  ledger.began(0);
  ledger.see(0, 8, steps(2));
  CHECK(ledger.untold()->steps == 7);
}

TEST_CASE("Sync ledger: who was late is told by its rank", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.see(0, 8, {.steps = 32, .late_steps = 2, .late_ns = {0, 300, 0}});
  ledger.see(1, 9, {.steps = 32, .busbw = 77});
  ledger.see(0, 8, {.steps = 64, .late_steps = 3, .late_ns = {0, 300, 5}});
  REQUIRE(ledger.untold());
  CHECK(ledger.untold()->late ==
        std::vector{LateRank{.rank = 8, .steps = 3, .forward_ns = 300, .backward_ns = 5}});
  CHECK(ledger.untold()->busbw == 77);
  ledger.told();
  ledger.see(0, 8, {.steps = 96, .late_steps = 3, .late_ns = {0, 300, 5}});
  CHECK(ledger.untold()->late.empty());
}

TEST_CASE("Sync ledger: what a page of nonsense says, the daemon still understands",
          "[sync_ledger]") {
  SyncLedger ledger;
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t value : {huge, std::uint64_t{3}, huge - 1, std::uint64_t{0}, huge}) {
    ledger.see(0, 8, {.steps = value, .bytes = value, .late_steps = value, .busbw = value});
  }
  REQUIRE(ledger.untold());
  CHECK(ledger.untold()->steps == SyncLedger::kMost);
  const rendezvous::AgentMessage message = rendezvous::Heartbeat{1, ledger.untold()};
  const auto heard = rendezvous::decode_agent_message(rendezvous::encode(message));
  REQUIRE(heard.has_value());
  CHECK(std::get<rendezvous::Heartbeat>(*heard).sync == ledger.untold());
}

}  // namespace
}  // namespace ddprun::agent
