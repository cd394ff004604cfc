#pragma once
// How DistributedDataParallel averages a bucket of gradients: by default with an all_reduce in the
// bucket's type; otherwise with one of the hooks below or with a CommHook of the program.
//
//   ddprun::DdpOptions options;
//   options.hook = ddprun::hooks::bf16();        // Half the bytes.
//
// A hook belongs to one DistributedDataParallel: it may keep state from step to step.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// One bucket, as passed to a hook. The bucket owns all memory; it does not move before
/// CommHook::forget().
struct GradientBucket {
  struct Piece {
    std::size_t parameter = 0;  ///< Its index.
    Buffer gradient;
    std::vector<std::int64_t> shape;
  };
  std::size_t index = 0;      ///< Buckets are launched in this order, on all ranks.
  bool last = false;          ///< No bucket follows in this step.
  Buffer flat;                ///< The array to average: gradients, zero padding and tail.
  std::vector<Piece> pieces;  ///< The gradients, in their order in `flat`.
  Buffer tail;                ///< The end of `flat` if parameters may be unused, else empty.
};

/// Per step: start() runs for each bucket, in order, as backward fills it. After backward,
/// proceed() runs once per phase for every bucket, then end() for every bucket, so all ranks issue
/// the same collectives in the same order. The thread that calls mark_ready() or finish_backward()
/// calls each of them under a lock. Each may throw Error.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// The kind of hook and its settings; checked to be equal on all ranks.
  virtual std::string name() const = 0;
  /// Starts the bucket's first collective; empty if the hook needs none.
  virtual std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) = 0;
  /// Number of consecutive collectives per bucket.
  virtual int phases() const { return 1; }
  /// Starts the collective of `phase`, 2 .. phases(), when that of the phase before is complete.
  virtual std::optional<Work> proceed(ProcessGroup& group, const GradientBucket& bucket, int phase);
  /// Called when the last collective is complete; on return bucket.flat holds the average.
  virtual void end(ProcessGroup& group, const GradientBucket& bucket);
  /// True if the hook itself reads and writes the arrays, which must then be in host memory.
  virtual bool computes_on_host() const { return false; }
  /// Called before the first step with a group. Throws Error(unsupported) if the hook cannot run on
  /// it.
  virtual void prepare(ProcessGroup& group);
  /// The buckets changed: drops the state kept for them.
  virtual void forget() {}
};

namespace hooks {

std::shared_ptr<CommHook> all_reduce();  ///< The same as no hook.
/// Converts gradients to the half type for transfer (round to nearest even) and sums in f32.
/// Buckets of a half type are reduced unconverted. On nccl the GPU divides by the world size during
/// conversion, and NCCL sums.
std::shared_ptr<CommHook> fp16();
std::shared_ptr<CommHook> bf16();
/// Communicates nothing, each rank keeps its gradients: to measure the cost of communication.
std::shared_ptr<CommHook> noop();

/// "PowerSGD: Practical Low-Rank Gradient Compression" (NeurIPS 2019), as in PyTorch: each matrix
/// is sent as two thin matrices, other arrays in full. On nccl `rank` is at most 8.
struct PowerSgdOptions {
  int rank = 1;                         ///< Of the approximation.
  int start_step = 1000;                ///< Earlier steps are averaged in full.
  double min_compression_rate = 2;      ///< Matrices that compress less are sent in full.
  bool use_error_feedback = true;       ///< Adds the error to the next gradient.
  bool warm_start = true;               ///< Starts from the last step's factors.
  double orthogonalization_epsilon = 0; /**< Added to norms; above 0 if gradients may vanish. */
  std::uint64_t seed = 0;               ///< Of the first factors.
};
std::shared_ptr<CommHook> power_sgd(const PowerSgdOptions& options = {});

/// A hook of one collective, with `start` and optionally `end` as in CommHook.
std::shared_ptr<CommHook> custom(
    std::string name,
    std::function<std::optional<Work>(ProcessGroup&, const GradientBucket&)> start,
    std::function<void(ProcessGroup&, const GradientBucket&)> end = {});

}  // namespace hooks
}  // namespace ddprun
