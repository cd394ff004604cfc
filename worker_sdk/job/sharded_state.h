#pragma once
// One state that is kept in shards: this rank's, and copies of those of others.
//
//   a round begins   stage: each rank reports what it has of the newest step; missing shards arrive
//                    barrier of the job
//                    install: the rest of earlier rounds is dropped
//   a step           next() is written beside now()
//                    refresh: next() goes to the rank that keeps the copy
//                    vote of the job: once a rank has its outcome, all ranks have refreshed
//                    advance: next() is now()
//
// So nothing is overwritten before all ranks have what replaces it, and after a death at any point
// each shard of the newest committed step is with two ranks, of which one may be dead.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/process_group.h"
#include "worker_sdk/job/shard_plan.h"

namespace ddprun::elastic {

// Shards in transit between the ranks of a group: a stream per pair of ranks, all streams side by
// side, in pieces with checksums.

// Pieces of memory as if they were one.
class ShardStream {
 public:
  void add(std::span<std::byte> part);
  std::uint64_t total() const { return total_; }
  // The bytes from `at` on, into or from `memory`.
  void read(std::uint64_t at, std::span<std::byte> memory) const;
  void write(std::uint64_t at, std::span<const std::byte> memory) const;

 private:
  template <class Visit>
  void visit(std::uint64_t at, std::size_t bytes, Visit visit) const;

  std::vector<std::span<std::byte>> parts_;
  std::uint64_t total_ = 0;
};

// Collective. `out` and `in`: by rank. `longest`: the total of the longest stream of any pair.
// Throws Error(corrupt) if a piece arrives damaged.
void carry(ProcessGroup& group, const std::vector<ShardStream>& out,
           const std::vector<ShardStream>& in, std::uint64_t longest);

struct ShardRound {
  std::vector<int> nodes;   // By rank.
  ShardVersion version;     // Of the state at its beginning.
  std::int64_t origin = 0;  // The steps after which this rank's program can fill shards.
  bool is_elastic = true;   // Ranks may be lost, and others go on.
};

struct ShardTraffic {
  std::uint64_t sent = 0, received = 0;  // Bytes.
};

class ShardedState {
 public:
  ShardedState(std::string name, ShardedOptions options);  // Throws Error(bad_argument).

  const std::string& name() const { return name_; }
  std::uint64_t signature(std::uint64_t seed) const;

  // Collective. Throws Error(state_lost) if some shard is on no rank, or only damaged.
  ShardTraffic stage(ProcessGroup& group, const ShardRound& round);
  void install();
  void forget();  // Drops all shards: a checkpoint replaces them.
  // The same, and the elements are those that the checkpoint in `path` has.
  void fill_from(const std::string& path);
  // The same, of all elements.
  void fill_from(std::vector<std::byte> whole);
  std::string name_in_checkpoint() const { return "shards " + name_; }
  std::uint64_t bytes() const { return cut_.bytes_of({0, options_.shards}); }  // Of all elements.
  // All elements as of now(), on rank 0; nothing elsewhere. Collective.
  std::vector<std::byte> gather_on_first(ProcessGroup& group);
  // This rank's part, for a checkpoint.
  CheckpointPiece piece();
  // Reads `share` of it. Throws Error(corrupt), and Error(mismatch) if it is of another job.
  void check(const Checkpoint& checkpoint, const EvenShare& share) const;
  void begin_step() { is_touched_ = false; }
  void refresh(ProcessGroup& group, const ShardVersion& version);  // Collective.
  void advance(const ShardVersion& version) noexcept;
  // Called before ranks leave as planned, while it is unknown which ones continue. Collective.
  ShardTraffic spread(ProcessGroup& group, const ShardRound& round);

  std::size_t first() const { return cut_.first_of(own_.now.range().first); }
  Buffer now() { return buffer_of(own_.now); }
  Buffer next();
  void gather(ProcessGroup& group, const Buffer& mine, const Buffer& whole) const;
  DataType type() const { return options_.type; }

 private:
  struct Pair {  // One rank's shards.
    int owner = 0;
    ShardBlock now;
    ShardBlock next;
  };
  struct Holds {
    std::vector<std::vector<Hold>> by_rank;
    int historian = -1;        // The lowest rank that seems to have been in the round before.
    std::vector<int> damaged;  // Shards, of this rank's.
  };

  Buffer buffer_of(ShardBlock& block) const;
  ShardBlock* find(int shard, const ShardVersion& version);
  Hold hold_of(int shard, const ShardVersion& version, std::vector<int>& damaged);
  Holds query_all(ProcessGroup& group, const ShardRound& round);
  ShardTraffic fetch(ProcessGroup& group, const ShardRound& round, const Wanted& wanted,
                     std::vector<ShardBlock>& into);
  void fill(const std::vector<ShardFill>& fills, int rank, const ShardVersion& version);
  ShardTraffic move(ProcessGroup& group, const ShardRound& round,
                    const std::vector<ShardMove>& moves, std::vector<ShardBlock>& into);
  void require_sound(ProcessGroup& group, const ShardBlock& block, int peer) const;
  void report_damaged(ProcessGroup& group, const Holds& holds) const;
  [[noreturn]] void refuse(ProcessGroup& group, const std::vector<int>& lost, const Holds& holds,
                           const ShardRound& round) const;

  const std::string name_;
  const ShardedOptions options_;
  const ShardCut cut_;
  Pair own_;
  std::vector<Pair> wards_;
  std::vector<ShardBlock> spare_;  // Staged, filled or spread since the last install().
  std::string checkpoint_ = {};    // Fills shards instead of the program's function.
  std::vector<std::byte> given_;   // Likewise.
  ShardLayout layout_;             // Of what is installed.
  ShardLayout staged_;             // Of what is staged at the end of spare_.
  int rank_ = 0;                   // In the staged round.
  bool is_elastic_ = false;
  bool is_touched_ = false;  // next() was called in this step.
};

}  // namespace ddprun::elastic
