#pragma once
// Which samples of a data set this rank reads in an epoch: torch.utils.data.DistributedSampler, bit
// for bit (golden files in tests/golden/sampler, made by PyTorch).

#include <cstdint>
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

class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);  ///< Throws Error(bad_argument).

  void set_epoch(std::int64_t epoch) noexcept { epoch_ = epoch; }
  std::int64_t num_samples() const noexcept { return num_samples_; }  ///< Of this rank, each epoch.

  /// This rank's indices for the current epoch, in the order to read them.
  std::vector<std::int64_t> indices() const;

 private:
  SamplerOptions options_;
  std::int64_t num_samples_ = 0;
  std::int64_t epoch_ = 0;
};

/// torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU: that of any PyTorch
/// for n below 214,748,364, that of PyTorch 2 from there on.
std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed);

}  // namespace ddprun
