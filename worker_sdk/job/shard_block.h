#pragma once
// The memory of some shards, one after the other, and behind them a checksum of each, so that both
// travel together. Pure.

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "worker_sdk/job/shard_plan.h"

namespace ddprun::elastic {

// The name of a piece of a step. By it the launcher recognises a piece that has ended two
// processes. Its first part, before ": ", is what seats name (common/worker_link.h). Pure.

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
