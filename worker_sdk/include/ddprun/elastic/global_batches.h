#pragma once
// Which samples each step of a run trains on, as a function of (seed, step) alone: the same global
// batches for every number of ranks, however often that number changes, and after a restart. Each
// index of a data set is in exactly one step of each of its epochs.
//
//   const ddprun::GlobalBatches batches(
//       {.sets = {{.length = 50'000}}, .global_batch = 512, .shards = 16});
//   for (std::int64_t step = checkpoint.step; step < 100 * batches.steps_per_epoch(); ++step) {
//     for (int shard : ddprun::shards_of(group.rank(), group.world_size(), batches.shards())) {
//       for (const ddprun::Sample& sample : batches.shard(step, shard)) read(sample.index);
//     }
//   }
//
// A batch is divided into shards, whose number is fixed for the run and at least the largest number
// of ranks; a rank computes one or several of them. If the result of a run must not depend on the
// number of ranks, each shard needs a backward pass of its own.

#include "ddprun/cxx20.h"

#include <cstdint>
#include <ranges>
#include <vector>

namespace ddprun {

struct DataSet {
  std::int64_t length = 0;  ///< Samples.
  /// Samples of each batch that come from this set: its weight. 0: all of the batch, for a single
  /// set.
  std::int64_t per_batch = 0;
};

/// The last batch of an epoch if the length of the data set is not a multiple of the batch. For
/// several sets, whose epochs end at different steps, it is always `continues`.
enum class LastBatch {
  smaller,    ///< It has the remaining samples.
  dropped,    ///< They are in no batch of this epoch; the next epoch drops others.
  continues,  ///< It is filled from the next epoch; all batches have one size.
};

struct GlobalBatchOptions {
  std::vector<DataSet> sets;
  std::int64_t global_batch = 0;  ///< Samples of a step, over all ranks.
  int shards = 1;                 ///< Fixed for the run, as all the rest.
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< Anew in each epoch of a set.
  LastBatch last = LastBatch::smaller;
};

struct Sample {
  int set = 0;             ///< Place in GlobalBatchOptions::sets.
  std::int64_t index = 0;  ///< In that set.
  std::int64_t epoch = 0;  ///< Of that set.
  bool operator==(const Sample&) const = default;
};

/// Immutable, and so thread-safe. Holds no permutation: any step costs as much as any other, and a
/// set may have up to 2^62 samples.
class GlobalBatches {
 public:
  /// Throws Error(bad_argument).
  explicit GlobalBatches(GlobalBatchOptions options);

  int shards() const noexcept { return options_.shards; }
  /// Of the only set: rounded down for `dropped`, up otherwise. Throws Error(bad_argument) if there
  /// are several sets.
  std::int64_t steps_per_epoch() const;

  /// `step` counts from 0 through all epochs; 0 <= shard < shards(). Throws Error(bad_argument).
  std::int64_t batch_size(std::int64_t step) const;  ///< Samples; less than global_batch at most
                                                     ///< at the end of an epoch.
  std::vector<Sample> batch(std::int64_t step) const;
  /// A part of batch(step): sizes differ by at most one, and depend on the step only. May be empty
  /// if the last batch is smaller than the number of shards.
  std::vector<Sample> shard(std::int64_t step, int shard) const;
  std::int64_t shard_size(std::int64_t step, int shard) const;  ///< Samples of shard().

 private:
  void require_shard(int shard) const;
  Sample sample(std::int64_t step, std::int64_t place) const;
  std::vector<Sample> dealt(std::int64_t step, int shard, int shards) const;

  GlobalBatchOptions options_;
};

/// The shards of a rank: contiguous, and as many as any other rank's, or one more. Throws
/// Error(bad_argument).
std::ranges::iota_view<int, int> shards_of(int rank, int world_size, int shards);

/// The position of element `place` of 0 .. n-1 in the random order selected by `key`: a bijection,
/// computed in constant time and memory. 0 <= place < n <= 2^62.
std::int64_t permuted(std::int64_t place, std::int64_t n, std::uint64_t key) noexcept;

}  // namespace ddprun
