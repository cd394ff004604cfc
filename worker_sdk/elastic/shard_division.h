#pragma once
// Which shards of a step each rank computes: as many as its speed allows, so that all ranks end at
// about the same time. Pure: a function of what the ranks measured in the committed steps of the
// round, and so the same on all ranks. Used by worker_sdk/job.
//
// Each rank has a contiguous range, and at least one shard. What a rank measures in one step is
// averaged with what it measured before. After a step one shard moves, from the rank that ends last
// to the one that would end first with one more, if that ends half a shard's time earlier; several
// move if the last rank takes more than twice as long. So neither noise nor one slow step moves
// anything for long.

#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

namespace ddprun::elastic {

// Picoseconds that a rank needs for a unit of work, such as a sample. 0: not known.
using Pace = std::int64_t;
constexpr Pace kPaceMost = Pace{1} << 53;

// Of a step in which a rank has worked for `nanoseconds`; 0 if it has done no work.
Pace pace_of(std::int64_t nanoseconds, double work);

class ShardDivision {
 public:
  ShardDivision() = default;
  // A round begins. `paces`: what pace() of each rank was in the round before; 0 of a new rank,
  // which counts as one of average speed until it has been measured.
  explicit ShardDivision(const std::vector<Pace>& paces);

  // The steps from now on have so many shards. A number that has changed is divided anew.
  void use(int shards);
  // The shards of a rank. A number other than that of use() is divided evenly.
  std::ranges::iota_view<int, int> of(int rank, int shards) const;

  int owner(int shard, int shards) const;  // The rank that has it.

  // A step is committed; by rank, what each has measured in it.
  void advance(std::span<const Pace> measured);

  // What a step takes less than with an even division, for each unit of work in a shard; by the
  // ranks' averages. 0 as long as none is known.
  Pace won() const;
  Pace pace(int rank) const;  // The rank's average; 0 as long as it has not been measured enough.
  std::int64_t moves() const { return moves_; }  // Shards that have moved since the round began.
  std::uint64_t fingerprint() const;             // Equal on ranks that divide alike.

 private:
  struct Average {
    Pace pace = 0;
    int measures = 0;  // At most kMeasuresMost are counted.
  };
  struct Move {
    std::size_t from = 0, to = 0;
  };

  static void add(Average& average, Pace measured);
  std::vector<Pace> known_paces() const;
  bool move_one(const std::vector<Pace>& paces);
  bool find_move(const std::vector<Pace>& paces, Move& move) const;
  bool is_twice_too_slow(const std::vector<Pace>& paces) const;

  std::vector<Average> averages_;  // By rank.
  std::vector<int> counts_;        // Shards by rank; empty before use().
  int shards_ = 0;
  std::int64_t moves_ = 0;
};

}  // namespace ddprun::elastic
