#pragma once
// Which ranks have which shards of a sharded state in a round, which keep their copies, and which
// shards move when another round begins. Pure. sharded_state.cc carries it out.

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace ddprun::elastic
