#pragma once
// Which samples of a data set this rank reads in an epoch: torch.utils.data.DistributedSampler, bit
// for bit (golden files in tests/golden, made by PyTorch), and BatchSampler. What PyTorch's lacks:
// an epoch can be gone on with in the middle, also by another number of ranks.
//
//   for (std::int64_t epoch = sampler.state().epoch; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (const auto& batch : ddprun::batches(sampler.indices(), 32)) {
//       train(batch);
//       sampler.advance(batch.size());    // What a checkpoint saves is sampler.state().
//     }
//   }

#include "ddprun/cxx20.h"

#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

struct SamplerOptions {
  std::int64_t length = 0;  ///< Samples in the data set.
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;  ///< The order of epoch e depends on seed + e alone; equal on all ranks.
  bool drop_last = false;  ///< Drop the tail instead of repeating samples to make ranks even.
};

/// How far an epoch has come; plain numbers, to be saved in any form. Equal on all ranks where all
/// have read equally much.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  ///< Samples that all ranks together have read of this epoch's order.
};

/// Not thread-safe. Nothing here communicates.
class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);  ///< Throws Error(bad_argument).

  /// Another epoch starts at its beginning; the same one goes on where it is.
  void set_epoch(std::int64_t epoch) noexcept;
  std::int64_t num_samples() const noexcept { return num_samples_; }  ///< Of this rank, each epoch.
  std::int64_t remaining() const noexcept;  ///< Of this rank, in the rest of this epoch.

  /// This rank's indices for the rest of the current epoch (all of it, unless advance() or load()
  /// said otherwise), in the order to read them. Every rank has equally many.
  std::vector<std::int64_t> indices() const;

  /// This rank, and so every other one, has read `count` more of its indices. Throws
  /// Error(bad_argument) if there are not so many.
  void advance(std::int64_t count);

  SamplerState state() const noexcept { return {epoch_, consumed_}; }
  /// Goes on where `state` was taken, though world_size and rank may be others: what is left of the
  /// epoch's order is dealt out among the ranks that there are now. So no sample is read twice in
  /// an epoch, and none left out, but for what makes the ranks even at its end. Length, seed and
  /// shuffle must be those of then. Throws Error(bad_argument) for a negative number.
  void load(const SamplerState& state);

 private:
  SamplerOptions options_;
  std::int64_t num_samples_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
};

/// torch.utils.data.BatchSampler: `indices` in groups of `batch_size`, the last of which may be
/// smaller, or is left out with `drop_last`. Throws Error(bad_argument) if batch_size is below 1.
std::vector<std::vector<std::int64_t>> batches(std::span<const std::int64_t> indices,
                                               std::int64_t batch_size, bool drop_last = false);

/// torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU: that of any PyTorch
/// for n below 214,748,364, that of PyTorch 2 from there on.
std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed);

}  // namespace ddprun
