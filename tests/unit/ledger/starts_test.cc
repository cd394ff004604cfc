// How long starts took, and who has how many shards, as the ledger adds them up.

#include <catch2/catch.hpp>

#include "common/ledger/time_parts.h"

namespace ddprun {
namespace {

const ProcessStart kCold = {false, 2'000, 2'000'000, 2'030'000, 2'100'000};
const ProcessStart kForked = {true, 5'000, 40'000, 60'000, 0};  // No step yet.
const ProcessStart kPlain = {false, 4'000, 0, 0, 0};            // Joins no group.

TEST_CASE("Starts: parts are known as far as the process has come") {
  CHECK(kCold[StartPart::kImports] == 2'000'000);
  CHECK(kCold[StartPart::kRendezvous] == 30'000);
  CHECK(kCold[StartPart::kFirstStep] == 70'000);
  CHECK(kForked[StartPart::kRendezvous] == 20'000);
  CHECK_FALSE(kForked[StartPart::kFirstStep]);
  CHECK(kPlain[StartPart::kSpawn] == 4'000);
  CHECK_FALSE(kPlain[StartPart::kImports]);
  CHECK_FALSE(kPlain[StartPart::kRendezvous]);
  // A step of a program whose group was met by no one that counts.
  CHECK_FALSE(ProcessStart{false, 1, 5, 0, 9}[StartPart::kFirstStep]);
  // A page may hold anything.
  CHECK(ProcessStart{false, 1, 9, 5, 0}[StartPart::kRendezvous] == 0);
}

TEST_CASE("Starts: travel as text") {
  const std::vector<ProcessStart> starts = {kCold, kForked};
  CHECK(to_text(starts) == "0,2000,2000000,2030000,2100000;1,5000,40000,60000,0");
  CHECK(parse_process_starts(to_text(starts)) == starts);
  CHECK(parse_process_starts("") == std::vector<ProcessStart>());
  for (const char* bad :
       {"1", "0,1,2,3", "0,1,2,3,4,5", "0,1,2,3,-4", "0,1,2,3,x", "0,1,2,3,99999999999999999"}) {
    INFO(bad);
    CHECK_FALSE(parse_process_starts(bad));
  }
  CHECK_FALSE(parse_process_starts(to_text(std::vector<ProcessStart>(kStartsMax + 1))));
}

TEST_CASE("Starts: cold and preloaded ones are averaged apart, over those that are known") {
  StartTotals totals;
  totals.add(kCold), totals.add(kPlain), totals.add(kForked);
  CHECK(totals.cold.processes == 2);
  CHECK(totals.cold.mean(StartPart::kSpawn) == Approx(0.003));
  CHECK(totals.cold.mean(StartPart::kImports) == Approx(2.0));
  CHECK_FALSE(totals.preloaded.mean(StartPart::kFirstStep));
  CHECK(parse_start_totals(to_text(totals)) == totals);
  CHECK_FALSE(parse_start_totals("1,2"));
  CHECK(start_lines(totals) ==
        std::vector<std::string>{
            "starts of 2 processes, cold, on average: spawn 3 ms, imports 2.0 s, rendezvous 30 ms, "
            "until the first step 70 ms",
            "starts of 1 process, preloaded, on average: spawn 5 ms, imports 40 ms, rendezvous 20 "
            "ms"});
  CHECK(start_lines({}).empty());
}

TEST_CASE("Shards of ranks: the fewest and the most, and what moving them has won") {
  ShardTotals totals;
  CHECK(shard_line(totals).empty());
  totals.add(-1, 3);  // No rank of the round.
  totals.add(2, 0);   // No elastic job.
  totals.add(0, 8), totals.add(1, 8);
  CHECK(shard_line(totals) == "shards of an elastic job: 8 per rank");
  totals.add(3, 5), totals.add(2, 11);
  totals.won_us = 41'000'000;
  CHECK(totals.ranks == 4);
  CHECK(shard_line(totals) ==
        "shards of an elastic job: 5 (rank 3) to 11 per rank; with an even division the steps "
        "would have taken about 41.0 s longer");
  CHECK(parse_shard_totals(to_text(totals)) == totals);
  CHECK_FALSE(parse_shard_totals("1,2,3"));
}

}  // namespace
}  // namespace ddprun
