#pragma once
// Which ranks have which shards of a sharded state in a round, which keep their copies, and which
// shards move when another round begins; and the memory of some shards. Pure. sharded_state.cc
// carries it out.

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"

namespace ddprun::elastic {

// The place of a rank.
struct ShardPlace {
  std::string host;
  int node = 0;  // Several may be on one host, to try things out.
  bool operator==(const ShardPlace&) const = default;
};

// By rank: the keeper of the copies of its shards. It is on another host if possible, else on
// another node, and the copies are spread as evenly as that allows; -1 in a world of one.
std::vector<int> keepers_of(const std::vector<ShardPlace>& places);

struct ShardRange {
  int first = 0, last = 0;  // `last` is one beyond.
  int size() const { return last - first; }
  bool has(int shard) const { return shard >= first && shard < last; }
  bool operator==(const ShardRange&) const = default;
};

// By shard: the ranks that are to have it, its owner first.
using Wanted = std::vector<std::vector<int>>;

// "shards 4 to 7, shard 9": of numbers that ascend.
std::string shards_text(const std::vector<int>& shards);

// How the shards are divided in one round.
class ShardLayout {
 public:
  ShardLayout() = default;  // A layout of no round.
  ShardLayout(std::vector<ShardPlace> places, int shards, bool has_copies);

  bool is_known() const { return !places_.empty(); }
  ShardRange owned_by(int rank) const;
  int keeper_of(int rank) const { return keepers_[static_cast<std::size_t>(rank)]; }
  std::vector<int> wards_of(int rank) const;  // The ranks that it keeps copies of.
  Wanted wanted() const;
  // Each shard on one rank of each node that lacks it, for the case that all nodes but one leave.
  Wanted spread() const;
  // "shards 4 to 7, which rank 1 on a had, and rank 2 on b a copy of"
  std::string describe(const std::vector<int>& shards) const;

 private:
  int owner_of(int shard) const;
  std::string name(int rank) const;

  std::vector<ShardPlace> places_;  // By rank.
  std::vector<int> keepers_;        // By rank.
  int shards_ = 0;
};

// What a rank has of a shard.
enum class Hold : std::uint8_t {
  kNothing = 0,
  kFills = 1,  // Not held, but the program can fill it.
  kHas = 2,
  kDamaged = 3,  // Its checksum is wrong; not used.
};

struct ShardMove {
  int shard = 0, from = 0, to = 0;
  bool operator==(const ShardMove&) const = default;
};
struct ShardFill {
  int shard = 0, rank = 0;
  bool operator==(const ShardFill&) const = default;
};
struct ShardMoves {
  std::vector<ShardFill> fills;
  std::vector<ShardMove> moves;
  std::vector<int> lost;  // No rank has them.
};

// `holds`: by rank and shard.
ShardMoves plan_moves(const std::vector<std::vector<Hold>>& holds, const Wanted& wanted);

// The name of a piece of a step. By it the launcher recognises a piece that has ended two
// processes. Its first part, before ": ", is what seats name (common/worker_link.h).
// "step 7, shard 3"
std::string piece_of(std::int64_t step, int shard);

// Whether `pieces`, separated by "; ", has `piece`.
bool has_piece(std::string_view pieces, std::string_view piece);

// "samples 5, 9 and 62 more"; of several sets "5 of set 1".
std::string text_of(const std::vector<Sample>& samples);

// How elements are cut into shards.
struct ShardCut {
  std::size_t count = 0;         // Elements of all shards.
  std::size_t element_size = 0;  // In bytes.
  int shards = 1;

  std::size_t first_of(int shard) const;  // The number of its first element; `shards`: the count.
  std::size_t bytes_of(const ShardRange& range) const;
  static constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
};

// The state that a block holds. A step that is given up and computed again in a later round makes
// another version.
struct ShardVersion {
  std::int64_t steps = 0;   // The number of committed steps.
  std::int64_t round = -1;  // The round that has committed the last of them; -1: none has.
  bool operator==(const ShardVersion&) const = default;
};

// The memory of some shards, one after the other, and behind them a checksum of each, so that both
// travel together.
class ShardBlock {
 public:
  static constexpr ShardVersion kUnfinished{.steps = -1};

  ShardBlock() = default;
  ShardBlock(const ShardCut& cut, const ShardRange& range);

  const ShardRange& range() const { return range_; }
  std::span<std::byte> memory() { return memory_; }              // With the checksums.
  std::span<std::byte> elements() { return shards_of(range_); }  // Without the checksums.
  std::span<std::byte> shard(int s) { return shards_of({s, s + 1}); }
  std::span<std::byte> sum(int s);

  // Sets the version of the content; kUnfinished while it is written.
  void finish(const ShardVersion& version) { version_ = version; }
  void reopen() {
    version_ = kUnfinished;
    dropped_.clear();
  }
  bool has(int s, const ShardVersion& version) const {
    return version_ == version && range_.has(s) && !dropped_.contains(s);
  }
  void drop(int s) { dropped_.insert(s); }  // The shard is damaged and must not be used.

  void seal();                        // Makes the checksums.
  int damaged() const;                // The first shard with a wrong checksum; -1: none.
  bool is_sound(int s) const;         // Whether its checksum is right.
  void copy_from(ShardBlock& other);  // `other` has the same range.

 private:
  std::span<std::byte> shards_of(const ShardRange& range);
  std::uint64_t sum_of(int s) const;

  ShardCut cut_;
  ShardRange range_;
  ShardVersion version_ = kUnfinished;
  std::vector<std::byte> memory_;
  std::set<int> dropped_;
};

}  // namespace ddprun::elastic
