#pragma once
// How DistributedDataParallel averages a bucket of gradients: by default with an all_reduce in the
// bucket's type; otherwise with one of the hooks below or with a CommHook of the program.
//
//   ddprun::DdpOptions options;
//   options.hook = ddprun::hooks::bf16();        // Half the bytes.
//
// A hook of the program is a function (hooks::custom) or, if it keeps state of its own from step to
// step, a class:
//
//   using namespace ddprun;
//   class Twice : public CommHook {
//    public:
//     Twice() : CommHook({.name = "twice", .computes_on_host = true}) {}
//     std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
//       if (step == 0) return group.all_reduce_async(bucket.flat, ReduceOp::avg);
//       auto* values = static_cast<float*>(bucket.flat.data);
//       for (std::size_t i = 0; i < bucket.flat.count; ++i) values[i] *= 2;
//       return {};                                    // The bucket is done.
//     }
//   };
//   options.hook = [](ProcessGroup&) { return std::make_unique<Twice>(); };

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// One bucket, as passed to a hook. The bucket owns all memory; it does not move while it exists.
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
  /// What the hook keeps for this bucket from step to step. Empty in the first pass, and again once
  /// other buckets replace this one.
  std::any state = {};
};

/// Properties of a hook that the ranks and DistributedDataParallel rely on.
struct CommHookTraits {
  /// The kind of hook and its settings; checked to be equal on all ranks.
  std::string name;
  int collectives = 1;  ///< The most that next() starts for a bucket, one after the other.
  bool computes_on_host = false;  ///< next() itself reads and writes arrays: not possible on nccl.
};

/// Averages the buckets of one DistributedDataParallel with one group. The thread that calls
/// mark_ready() or finish_backward() calls it, one call at a time.
class CommHook {
 public:
  explicit CommHook(CommHookTraits traits) : traits_(std::move(traits)) {}
  virtual ~CommHook() = default;
  const CommHookTraits& traits() const noexcept { return traits_; }

  /// Does the next step of averaging `bucket`. Step 0 is called when backward has filled the
  /// bucket, each later step when the collective of the previous step is complete. Returns the
  /// collective that this step started; empty: bucket.flat holds the average, and no step follows
  /// in this pass. Ranks issue the same collectives in the same order: step 0 in the order of
  /// buckets, each later step after backward, for one bucket after the other. May throw Error.
  virtual std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) = 0;

 private:
  CommHookTraits traits_;
};

/// Creates the hook of a DistributedDataParallel, and a new hook for each further group that
/// reconfigure() connects it with. The hook may keep the group. Throws Error(unsupported) if the
/// hook cannot run on it.
using CommHookFactory = std::function<std::unique_ptr<CommHook>(ProcessGroup&)>;

namespace hooks {

CommHookFactory all_reduce();  ///< The same as no hook.
/// Converts gradients to the half type for transfer (round to nearest even) and sums in f32.
/// Buckets of a half type are reduced unconverted. On nccl the GPU divides by the world size during
/// conversion, and NCCL sums.
CommHookFactory fp16();
CommHookFactory bf16();
/// Communicates nothing, each rank keeps its gradients: to measure the cost of communication.
CommHookFactory noop();

/// "PowerSGD: Practical Low-Rank Gradient Compression" (NeurIPS 2019), as in PyTorch: each matrix
/// is sent as two thin matrices, other arrays in full. On nccl `rank` is at most 8.
struct PowerSgdOptions {
  int rank = 1;                         ///< Of the approximation.
  int start_step = 1000;                ///< Earlier steps with a group are averaged in full.
  double min_compression_rate = 2;      ///< Matrices that compress less are sent in full.
  bool use_error_feedback = true;       ///< Adds the error to the next gradient.
  bool warm_start = true;               ///< Starts from the last step's factors.
  double orthogonalization_epsilon = 0; /**< Added to norms; above 0 if gradients may vanish. */
  std::uint64_t seed = 0;               ///< Of the first factors.
};
CommHookFactory power_sgd(const PowerSgdOptions& options = {});

/// A hook that is a function: CommHook::next().
CommHookFactory custom(
    CommHookTraits traits,
    std::function<std::optional<Work>(ProcessGroup&, GradientBucket&, int step)> next);

}  // namespace hooks
}  // namespace ddprun
