#pragma once
// How many shards of an elastic job each rank has, and what it has won that they follow the ranks'
// speed (docs/elastic.md): for the reports of a run. Pure. Summed up by rendezvous/ledger.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

struct ShardTotals {
  std::int64_t ranks = 0;  // That have shards.
  std::int64_t fewest = 0, most = 0;
  std::int64_t slowest = 0;  // The lowest rank that has the fewest.
  std::int64_t won_us = 0;   // What the steps would have taken longer with an even division.
  bool operator==(const ShardTotals&) const = default;

  void add(int rank, std::uint64_t shards);
};

std::string to_text(const ShardTotals& totals);
std::optional<ShardTotals> parse_shard_totals(std::string_view text);

// "shards: 5 (rank 3) to 9 per rank; ..."; empty if there are none.
std::string shard_line(const ShardTotals& totals);

}  // namespace ddprun
