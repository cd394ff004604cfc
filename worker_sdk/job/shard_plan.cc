#include "worker_sdk/job/shard_plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"
#include "ddprun/elastic/global_batches.h"

namespace ddprun::elastic {
namespace {

using Ranks = std::vector<int>;

// The ranks of each node, or host, in the order of their first.
template <class Same>
std::vector<Ranks> grouped(const std::vector<ShardPlace>& places, Same are_together) {
  std::vector<Ranks> groups;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const auto same = [&](const Ranks& g) {
      return are_together(places[static_cast<std::size_t>(g.front())], places[r]);
    };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), Ranks());
    found->push_back(static_cast<int>(r));
  }
  return groups;
}

std::vector<Ranks> by_node(const std::vector<ShardPlace>& places) {
  return grouped(places, [](const ShardPlace& a, const ShardPlace& b) { return a == b; });
}

std::vector<Ranks> by_host(const std::vector<ShardPlace>& places) {
  return grouped(places, [](const ShardPlace& a, const ShardPlace& b) { return a.host == b.host; });
}

Ranks joined(const std::vector<Ranks>& groups) {
  Ranks all;
  for (const Ranks& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

// For one host with more than half of the ranks: its ranks are spread over the others as keepers,
// and each of the others is kept by one of its ranks.
void pair_with_largest(std::vector<Ranks> groups, std::size_t largest, Ranks& keepers) {
  const Ranks many = std::move(groups[largest]);
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(largest));
  const Ranks few = joined(groups);
  for (std::size_t i = 0; i < many.size(); ++i) {
    keepers[static_cast<std::size_t>(many[i])] = few[i % few.size()];
  }
  for (std::size_t i = 0; i < few.size(); ++i) {
    keepers[static_cast<std::size_t>(few[i])] = many[i % many.size()];
  }
}

std::string range_text(int first, int last) {
  if (first == last) return "shard " + std::to_string(first);
  return "shards " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

// If the ranks of a host are beside each other and no host has more than half of the ranks, a shift
// by the size of the largest host always leads to another host.
std::vector<int> keepers_of(const std::vector<ShardPlace>& places) {
  const std::size_t n = places.size();
  Ranks keepers(n, -1);
  if (n < 2) return keepers;
  std::vector<Ranks> groups = by_host(places);
  if (groups.size() == 1) groups = by_node(places);
  const auto smaller = [](const Ranks& a, const Ranks& b) { return a.size() < b.size(); };
  const auto largest = std::max_element(groups.begin(), groups.end(), smaller);
  if (groups.size() > 1 && 2 * largest->size() > n) {
    pair_with_largest(groups, static_cast<std::size_t>(largest - groups.begin()), keepers);
    return keepers;
  }
  const std::size_t shift = groups.size() > 1 ? largest->size() : 1;
  const Ranks order = joined(groups);
  for (std::size_t i = 0; i < n; ++i) {
    keepers[static_cast<std::size_t>(order[i])] = order[(i + shift) % n];
  }
  return keepers;
}

ShardLayout::ShardLayout(std::vector<ShardPlace> places, int shards, bool has_copies)
    : places_(std::move(places)),
      keepers_(has_copies ? keepers_of(places_) : Ranks(places_.size(), -1)),
      shards_(shards) {
  DDPRUN_ASSERT(!places_.empty() && shards > 0);
}

ShardRange ShardLayout::owned_by(int rank) const {
  const auto mine = shards_of(rank, static_cast<int>(places_.size()), shards_);
  if (mine.empty()) return {};
  return {mine.front(), mine.back() + 1};
}

std::vector<int> ShardLayout::wards_of(int rank) const {
  Ranks wards;
  for (std::size_t r = 0; r < keepers_.size(); ++r) {
    if (keepers_[r] == rank) wards.push_back(static_cast<int>(r));
  }
  return wards;
}

Wanted ShardLayout::wanted() const {
  Wanted wanted(static_cast<std::size_t>(shards_));
  for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
    const ShardRange owned = owned_by(rank);
    for (int shard = owned.first; shard < owned.last; ++shard) {
      auto& ranks = wanted[static_cast<std::size_t>(shard)];
      ranks.push_back(rank);
      if (keeper_of(rank) >= 0) ranks.push_back(keeper_of(rank));
    }
  }
  return wanted;
}

Wanted ShardLayout::spread() const {
  Wanted result(static_cast<std::size_t>(shards_));
  const std::vector<Ranks> groups = by_node(places_);
  if (groups.size() < 3) return result;  // Each has its own or the copy.
  const Wanted have = wanted();
  for (std::size_t shard = 0; shard < have.size(); ++shard) {
    for (const Ranks& group : groups) {
      const bool has = std::any_of(have[shard].begin(), have[shard].end(), [&](int rank) {
        return std::find(group.begin(), group.end(), rank) != group.end();
      });
      if (!has) result[shard].push_back(group[shard % group.size()]);
    }
  }
  return result;
}

int ShardLayout::owner_of(int shard) const {
  int rank = 0;
  while (!owned_by(rank).has(shard)) ++rank;
  return rank;
}

std::string ShardLayout::name(int rank) const {
  return "rank " + std::to_string(rank) + " on " + places_[static_cast<std::size_t>(rank)].host;
}

std::string shards_text(const std::vector<int>& shards) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < shards.size(); i = end) {
    for (end = i + 1; end < shards.size() && shards[end] == shards[end - 1] + 1;) ++end;
    text += (i == 0 ? "" : ", ") + range_text(shards[i], shards[end - 1]);
  }
  return text;
}

std::string ShardLayout::describe(const std::vector<int>& shards) const {
  std::string text;
  for (std::size_t i = 0; i < shards.size();) {
    const int owner = owner_of(shards[i]), keeper = keeper_of(owner);
    std::size_t end = i + 1;
    while (end < shards.size() && shards[end] == shards[end - 1] + 1 &&
           owned_by(owner).has(shards[end])) {
      ++end;
    }
    text += (text.empty() ? "" : "; ") + range_text(shards[i], shards[end - 1]) + ", which " +
            name(owner) + " had" +
            (keeper < 0 ? std::string() : ", and " + name(keeper) + " a copy of");
    i = end;
  }
  return text;
}

ShardMoves plan_moves(const std::vector<std::vector<Hold>>& holds, const Wanted& wanted) {
  ShardMoves result;
  std::vector<int> given(holds.size(), 0);
  for (std::size_t shard = 0; shard < wanted.size(); ++shard) {
    const auto number = static_cast<int>(shard);
    const auto is = [&](std::size_t rank, Hold hold) { return holds[rank][shard] == hold; };
    int source = -1;
    for (std::size_t r = 0; r < holds.size(); ++r) {
      const bool better = source < 0 || given[r] < given[static_cast<std::size_t>(source)];
      if (is(r, Hold::kHas) && better) source = static_cast<int>(r);
    }
    if (source < 0 && !wanted[shard].empty()) {
      Ranks candidates = wanted[shard];
      for (std::size_t r = 0; r < holds.size(); ++r) candidates.push_back(static_cast<int>(r));
      const auto found = std::find_if(candidates.begin(), candidates.end(), [&](int rank) {
        return is(static_cast<std::size_t>(rank), Hold::kFills);
      });
      if (found == candidates.end()) {
        result.lost.push_back(number);
        continue;
      }
      source = *found;
      result.fills.push_back({number, source});
    }
    for (const int rank : wanted[shard]) {
      if (rank == source || is(static_cast<std::size_t>(rank), Hold::kHas)) continue;
      result.moves.push_back({number, source, rank});
      ++given[static_cast<std::size_t>(source)];
    }
  }
  return result;
}

std::string piece_of(std::int64_t step, int shard) {
  return "step " + std::to_string(step) + ", shard " + std::to_string(shard);
}

bool has_piece(std::string_view pieces, std::string_view piece) {
  constexpr std::string_view kBetween = "; ";
  while (!pieces.empty()) {
    const std::size_t end = pieces.find(kBetween);
    if (pieces.substr(0, end) == piece) return true;
    pieces.remove_prefix(end == std::string_view::npos ? pieces.size() : end + kBetween.size());
  }
  return false;
}

std::string text_of(const std::vector<Sample>& samples) {
  constexpr std::size_t kLongest = 400;  // The page has room for 511 characters of a piece.
  std::string text;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (text.size() > kLongest) {
      return text + " and " + std::to_string(samples.size() - i) + " more";
    }
    text += (i > 0 ? ", " : samples.size() > 1 ? "samples " : "sample ");
    text += std::to_string(samples[i].index);
    if (samples[i].set > 0) text += " of set " + std::to_string(samples[i].set);
  }
  return text;
}

std::size_t ShardCut::first_of(int shard) const {
  const auto n = static_cast<std::size_t>(shards), s = static_cast<std::size_t>(shard);
  return count / n * s + std::min(s, count % n);
}

std::size_t ShardCut::bytes_of(const ShardRange& range) const {
  return (first_of(range.last) - first_of(range.first)) * element_size;
}

ShardBlock::ShardBlock(const ShardCut& cut, const ShardRange& range)
    : cut_(cut),
      range_(range),
      memory_(cut.bytes_of(range) + static_cast<std::size_t>(range.size()) * ShardCut::kSumBytes) {}

std::span<std::byte> ShardBlock::shards_of(const ShardRange& range) {
  DDPRUN_ASSERT(range.first >= range_.first && range.last <= range_.last);
  const std::size_t before = cut_.bytes_of({range_.first, range.first});
  return std::span(memory_).subspan(before, cut_.bytes_of(range));
}

std::span<std::byte> ShardBlock::sum(int s) {
  DDPRUN_ASSERT(range_.has(s));
  const auto place = static_cast<std::size_t>(s - range_.first) * ShardCut::kSumBytes;
  return std::span(memory_).subspan(cut_.bytes_of(range_) + place, ShardCut::kSumBytes);
}

std::uint64_t ShardBlock::sum_of(int s) const {
  const std::byte* first = memory_.data() + cut_.bytes_of({range_.first, s});
  return checksum(first, cut_.bytes_of({s, s + 1}), static_cast<std::uint64_t>(s));
}

void ShardBlock::seal() {
  for (int s = range_.first; s < range_.last; ++s) {
    const std::uint64_t made = sum_of(s);
    std::memcpy(sum(s).data(), &made, ShardCut::kSumBytes);
  }
}

bool ShardBlock::is_sound(int s) const {
  const auto place = static_cast<std::size_t>(s - range_.first) * ShardCut::kSumBytes;
  const std::uint64_t wanted = sum_of(s);
  const std::byte* const sum = memory_.data() + cut_.bytes_of(range_) + place;
  return std::memcmp(sum, &wanted, ShardCut::kSumBytes) == 0;
}

int ShardBlock::damaged() const {
  for (int s = range_.first; s < range_.last; ++s) {
    if (!is_sound(s)) return s;
  }
  return -1;
}

void ShardBlock::copy_from(ShardBlock& other) {
  DDPRUN_ASSERT(other.range_ == range_);
  memory_ = other.memory_;
}

}  // namespace ddprun::elastic
