#pragma once
// Selects the samples of a data set that this rank reads in an epoch, exactly as
// torch.utils.data.DistributedSampler (golden files in tests/golden, made by PyTorch) and
// BatchSampler do. Unlike in PyTorch, training can resume within an epoch, also with another number
// of ranks.
//
//   ddprun::DistributedSampler sampler(group, samples, {.seed = 7});
//   for (std::int64_t epoch = sampler.state().epoch; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (const auto& batch : ddprun::batches(sampler.indices(), 32)) {
//       train(batch);
//       sampler.advance(batch.size());    // A checkpoint saves sampler.state().
//     }
//   }

#include "ddprun/cxx20.h"

#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

class ProcessGroup;

/// What is divided, among how many ranks, and which of them this is.
struct SamplerShare {
  std::int64_t length = 0;  ///< Samples in the data set.
  int world_size = 1;
  int rank = 0;
};

/// Must be equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  ///< Epoch e is shuffled with seed + e.
  bool drop_last = false;  ///< Drop the tail instead of padding it with repeated samples.
};

/// Progress within an epoch, to be saved in any form. Equal on all ranks if all have read equally
/// many samples.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  ///< Samples of this epoch that all ranks together have read.
};

/// Not thread-safe. Communicates nothing, and does not keep the group.
class DistributedSampler {
 public:
  /// For this rank of `group`. Throws Error(bad_argument).
  DistributedSampler(const ProcessGroup& group, std::int64_t length,
                     const SamplerOptions& options = {});
  /// The same without a group, such as for a process that only loads data.
  explicit DistributedSampler(const SamplerShare& share, const SamplerOptions& options = {});

  /// Starts another epoch at its beginning; the current epoch continues at its position.
  void set_epoch(std::int64_t epoch) noexcept;
  std::int64_t num_samples() const noexcept { return num_samples_; }  ///< Of this rank, per epoch.
  std::int64_t remaining() const noexcept;  ///< Of this rank, left in this epoch.

  /// This rank's indices for the rest of the current epoch (all of it before advance() and load()),
  /// in reading order. All ranks have equally many.
  std::vector<std::int64_t> indices() const;

  /// Records that this rank, and so each other rank, has read `count` more indices. Throws
  /// Error(bad_argument) if fewer remain.
  void advance(std::int64_t count);

  SamplerState state() const noexcept { return {epoch_, consumed_}; }
  /// Continues from `state`, also with another world_size and rank: the rest of the epoch is
  /// divided among the present ranks. So an epoch repeats and omits no sample, except for the
  /// padding or dropped tail at its end. Length, seed and shuffle must be unchanged. Throws
  /// Error(bad_argument) for a negative number.
  void load(const SamplerState& state);

 private:
  SamplerShare share_;
  SamplerOptions options_;
  std::int64_t num_samples_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
};

/// torch.utils.data.BatchSampler: `indices` in groups of `batch_size`; the last group may be
/// smaller, and is omitted then if `drop_last` is set. Throws Error(bad_argument) if batch_size is
/// below 1.
std::vector<std::vector<std::int64_t>> batches(std::span<const std::int64_t> indices,
                                               std::int64_t batch_size, bool drop_last = false);

/// torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU: as any PyTorch for
/// n below 214,748,364, as PyTorch 2 for larger n.
std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed);

}  // namespace ddprun
