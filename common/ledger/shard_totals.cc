#include "common/ledger/shard_totals.h"

#include <algorithm>
#include <chrono>

#include "common/ledger/number_list.h"
#include "common/text/figures.h"

namespace ddprun {

void ShardTotals::add(int rank, std::uint64_t shards) {
  if (rank < 0 || shards == 0) return;
  const auto here = static_cast<std::int64_t>(std::min<std::uint64_t>(shards, 1U << 30));
  const bool is_fewest = ranks == 0 || here < fewest || (here == fewest && rank < slowest);
  if (is_fewest) fewest = here, slowest = rank;
  most = std::max(most, here);
  ++ranks;
}

std::string to_text(const ShardTotals& totals) {
  const std::int64_t numbers[] = {totals.ranks, totals.fewest, totals.most, totals.slowest,
                                  totals.won_us};
  return number_list(numbers);
}

std::optional<ShardTotals> parse_shard_totals(std::string_view text) {
  const auto numbers = parse_number_list(text, 5);
  if (!numbers) return std::nullopt;
  const auto& n = *numbers;
  return ShardTotals{n[0], n[1], n[2], n[3], n[4]};
}

std::string shard_line(const ShardTotals& totals) {
  if (totals.ranks == 0) return "";
  std::string line = "shards of an elastic job: " + std::to_string(totals.fewest);
  if (totals.most > totals.fewest) {
    line += " (rank " + std::to_string(totals.slowest) + ") to " + std::to_string(totals.most);
  }
  line += " per rank";
  if (totals.won_us == 0) return line;
  return line + "; with an even division the steps would have taken about " +
         took_text(std::chrono::microseconds(totals.won_us)) + " longer";
}

}  // namespace ddprun
