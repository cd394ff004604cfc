#include "worker_sdk/elastic/shard_division.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/assert.h"
#include "ddprun/elastic/global_batches.h"
#include "worker_sdk/elastic/mix.h"

namespace ddprun::elastic {
namespace {

// Whole numbers only: floating-point results may differ between processors.
using Time = __int128;

// The first measure of a rank is dropped, as the first step of a process is slow. The mean of the
// next ones counts from kMeasuresNeeded on; later each measure has a weight of kWeight in 100.
constexpr int kMeasuresNeeded = 4, kMeasuresMost = 8;
constexpr Pace kWeight = 15;
// A measure counts as at most so many times the average: a standstill is no change of speed.
constexpr Pace kJumpMost = 4;

Time time_of(int shards, Pace pace) { return Time{shards} * pace; }

}  // namespace

Pace pace_of(std::int64_t nanoseconds, double work) {
  constexpr double kPicoseconds = 1000;
  if (nanoseconds <= 0 || !(work > 0) || !std::isfinite(work)) return 0;
  const double pace = static_cast<double>(nanoseconds) * kPicoseconds / work;
  return static_cast<Pace>(std::clamp(pace, 1.0, static_cast<double>(kPaceMost)));
}

ShardDivision::ShardDivision(const std::vector<Pace>& paces) {
  for (const Pace pace : paces) {
    const bool is_known = pace > 0 && pace <= kPaceMost;
    averages_.push_back(is_known ? Average{pace, kMeasuresMost} : Average{});
  }
}

void ShardDivision::use(int shards) {
  if (shards == shards_) return;
  const int ranks = static_cast<int>(averages_.size());
  std::vector<int> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(static_cast<int>(shards_of(rank, ranks, shards).size()));
  }
  counts_ = std::move(counts);
  shards_ = shards;
  const std::vector<Pace> paces = known_paces();
  for (int i = 0; i < shards && move_one(paces); ++i) continue;
}

std::ranges::iota_view<int, int> ShardDivision::of(int rank, int shards) const {
  if (shards != shards_ || counts_.empty()) {
    return shards_of(rank, static_cast<int>(averages_.size()), shards);
  }
  DDPRUN_ASSERT(rank >= 0 && rank < static_cast<int>(counts_.size()));
  const int first = std::accumulate(counts_.begin(), counts_.begin() + rank, 0);
  return {first, first + counts_[static_cast<std::size_t>(rank)]};
}

int ShardDivision::owner(int shard, int shards) const {
  int rank = 0;
  while (shard >= *of(rank, shards).end()) ++rank;
  return rank;
}

void ShardDivision::add(Average& average, Pace measured) {
  if (measured <= 0) return;
  average.measures = std::min(average.measures + 1, kMeasuresMost);
  if (average.measures == 1) return;
  const Pace most = average.pace == 0 ? kPaceMost : std::min(average.pace * kJumpMost, kPaceMost);
  const Pace weight = std::max<Pace>(kWeight, 100 / (average.measures - 1));
  const Pace now = std::min(measured, most);
  average.pace = std::max<Pace>(
      static_cast<Pace>((Time{average.pace} * (100 - weight) + Time{now} * weight) / 100), 1);
}

void ShardDivision::advance(std::span<const Pace> measured) {
  DDPRUN_ASSERT(measured.size() == averages_.size());
  for (std::size_t rank = 0; rank < averages_.size(); ++rank) add(averages_[rank], measured[rank]);
  if (counts_.empty()) return;
  const std::vector<Pace> paces = known_paces();
  for (int i = 0; i < shards_; ++i) {
    const bool goes_on = is_twice_too_slow(paces);
    if (!move_one(paces)) return;
    ++moves_;
    if (!goes_on) return;
  }
}

// Ranks that have not been measured count as the average of the others. Empty: none has been.
std::vector<Pace> ShardDivision::known_paces() const {
  std::vector<Pace> paces;
  Time sum = 0;
  int known = 0;
  for (std::size_t rank = 0; rank < averages_.size(); ++rank) {
    paces.push_back(pace(static_cast<int>(rank)));
    sum += paces.back();
    known += paces.back() > 0 ? 1 : 0;
  }
  if (known == 0) return {};
  std::replace(paces.begin(), paces.end(), Pace{0},
               std::max<Pace>(static_cast<Pace>(sum / known), 1));
  return paces;
}

// The rank that ends last, and the one that would end first with one shard more; of equal ones the
// lowest. False: no shard can be moved.
bool ShardDivision::find_move(const std::vector<Pace>& paces, Move& move) const {
  if (paces.size() < 2) return false;
  const auto end = [&](std::size_t rank, int more) {
    return time_of(counts_[rank] + more, paces[rank]);
  };
  move.from = 0;
  for (std::size_t rank = 1; rank < paces.size(); ++rank) {
    if (end(rank, 0) > end(move.from, 0)) move.from = rank;
  }
  move.to = move.from == 0 ? 1 : 0;
  for (std::size_t rank = 0; rank < paces.size(); ++rank) {
    if (rank != move.from && end(rank, 1) < end(move.to, 1)) move.to = rank;
  }
  return counts_[move.from] > 1;
}

bool ShardDivision::is_twice_too_slow(const std::vector<Pace>& paces) const {
  Move move;
  return find_move(paces, move) && time_of(counts_[move.from], paces[move.from]) >
                                       2 * time_of(counts_[move.to] + 1, paces[move.to]);
}

bool ShardDivision::move_one(const std::vector<Pace>& paces) {
  Move move;
  if (!find_move(paces, move)) return false;
  const Time won =
      time_of(counts_[move.from], paces[move.from]) - time_of(counts_[move.to] + 1, paces[move.to]);
  if (2 * won < paces[move.to]) return false;
  --counts_[move.from];
  ++counts_[move.to];
  return true;
}

Pace ShardDivision::won() const {
  const std::vector<Pace> paces = known_paces();
  if (paces.empty() || counts_.empty()) return 0;
  const int ranks = static_cast<int>(paces.size());
  Time even = 0, now = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const int share = static_cast<int>(shards_of(rank, ranks, shards_).size());
    even = std::max(even, time_of(share, paces[at]));
    now = std::max(now, time_of(counts_[at], paces[at]));
  }
  return static_cast<Pace>(std::clamp<Time>(even - now, 0, kPaceMost));
}

Pace ShardDivision::pace(int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= averages_.size() || averages_[at].measures < kMeasuresNeeded) return 0;
  return averages_[at].pace;
}

std::uint64_t ShardDivision::fingerprint() const {
  std::uint64_t print = worker_sdk::mix64(static_cast<std::uint64_t>(shards_) + 1);
  const auto add_number = [&](std::int64_t n) {
    print = worker_sdk::mix64(print ^ static_cast<std::uint64_t>(n));
  };
  for (const int count : counts_) add_number(count);
  for (const Average& average : averages_) {
    add_number(average.pace);
    add_number(average.measures);
  }
  return print;
}

}  // namespace ddprun::elastic
