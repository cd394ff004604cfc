#include "agent/health/progress_monitor.h"

#include <catch2/catch.hpp>
#include <limits>

namespace ddprun::agent {
namespace {

using rendezvous::SyncIncrease;

WorkerCounts steps(std::uint64_t count) {
  return {.sums = {{"steps", count}, {"exposed_ns", 10 * count}}};
}

TEST_CASE("Sync ledger: each step is told once, of all workers together", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.began(0);
  ledger.began(1);
  ledger.see(0, 8, {});
  CHECK_FALSE(ledger.unreported());
  ledger.see(0, 8, steps(5));
  ledger.see(1, 9, steps(7));
  REQUIRE(ledger.unreported());
  CHECK(*ledger.unreported() == SyncIncrease{.sums = {{"steps", 12}, {"exposed_ns", 120}}});
  ledger.see(0, 8, steps(6));  // Not reported yet.
  CHECK(ledger.unreported()->sums["steps"] == 13);
  ledger.mark_reported();
  CHECK_FALSE(ledger.unreported());
  ledger.see(1, 9, steps(7));
  CHECK_FALSE(ledger.unreported());
  ledger.see(1, 9, steps(8));
  CHECK(*ledger.unreported() == SyncIncrease{.sums = {{"steps", 1}, {"exposed_ns", 10}}});
}

TEST_CASE("Sync ledger: a worker that is started again counts from zero", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.began(0);
  ledger.see(0, 8, steps(5));
  ledger.began(0);
  ledger.see(0, 8, steps(2));
  CHECK(ledger.unreported()->sums["steps"] == 7);
}

TEST_CASE("Sync ledger: who was late is told by its rank", "[sync_ledger]") {
  SyncLedger ledger;
  ledger.see(0, 8, {{{"steps", 32}}, {{"steps", 2}, {"forward_ns", 300}}});
  ledger.see(1, 9, {.sums = {{"steps", 32}, {"busbw", 77}}});
  ledger.see(0, 8, {{{"steps", 64}}, {{"steps", 3}, {"forward_ns", 300}, {"backward_ns", 5}}});
  REQUIRE(ledger.unreported());
  CHECK(ledger.unreported()->late ==
        std::vector{LateRank{8, {{"steps", 3}, {"forward_ns", 300}, {"backward_ns", 5}}}});
  CHECK(ledger.unreported()->sums["busbw"] == 77);
  ledger.mark_reported();
  ledger.see(0, 8, {{{"steps", 96}}, {{"steps", 3}, {"forward_ns", 300}, {"backward_ns", 5}}});
  CHECK(ledger.unreported()->late.empty());
}

TEST_CASE("Sync ledger: what a page of nonsense says, the daemon still understands",
          "[sync_ledger]") {
  SyncLedger ledger;
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t value : {huge, std::uint64_t{3}, huge - 1, std::uint64_t{0}, huge}) {
    ledger.see(0, 8, {{{"steps", value}, {"bytes", value}, {"busbw", value}}, {{"steps", value}}});
  }
  REQUIRE(ledger.unreported());
  CHECK(ledger.unreported()->sums["steps"] == SyncLedger::kMost);
  const rendezvous::AgentMessage message = rendezvous::Heartbeat{1, ledger.unreported()};
  const auto received = rendezvous::decode_agent_message(rendezvous::encode(message));
  REQUIRE(received.has_value());
  CHECK(std::get<rendezvous::Heartbeat>(*received).sync == ledger.unreported());
}

}  // namespace
}  // namespace ddprun::agent
