#pragma once
// How DistributedDataParallel averages a bucket of gradients: by an all_reduce in the bucket's own
// type, or by one of these, or by a hook of yours.
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

/// One bucket, as a hook sees it. All memory is the bucket's own and stays where it is until
/// CommHook::forget().
struct GradientBucket {
  struct Piece {
    std::size_t parameter = 0;  ///< Its number.
    Buffer gradient;
    std::vector<std::int64_t> shape;
  };
  std::size_t index = 0;      ///< Buckets are launched in this order, on all ranks.
  bool last = false;          ///< No bucket follows in this step.
  Buffer flat;                ///< Gradients, padding (zeros) and the tail: what is to be averaged.
  std::vector<Piece> pieces;  ///< The gradients, in the order in which they lie in `flat`.
  Buffer tail;                ///< What `flat` ends with if parameters may be unused, else empty.
};

/// Per step: start() runs for each bucket, in order, as backward fills it. After backward,
/// proceed() runs once per phase for every bucket, then end() for every bucket. So the ranks'
/// collectives meet in the same order. Each is called under a lock, by the thread that calls
/// mark_ready() or finish_backward(), and may throw Error.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Must be equal on all ranks, as is checked: the kind of hook and its settings.
  virtual std::string name() const = 0;
  /// Starts the bucket's first collective. Nothing: there is none.
  virtual std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) = 0;
  /// How many collectives follow one another for a bucket.
  virtual int phases() const { return 1; }
  /// The collective of phase `phase` - 1 is done; starts that of `phase`, which is 2 .. phases().
  virtual std::optional<Work> proceed(ProcessGroup& group, const GradientBucket& bucket, int phase);
  /// The last collective is done; bucket.flat must hold the average now.
  virtual void end(ProcessGroup& group, const GradientBucket& bucket);
  /// True: it reads and writes the arrays itself, which it cannot where they are a GPU's.
  virtual bool computes_on_host() const { return false; }
  /// Before the first step with a group. Throws Error(unsupported) where it cannot do its work.
  virtual void prepare(ProcessGroup& group);
  /// The buckets changed; what was kept for them is to be dropped.
  virtual void forget() {}
};

namespace hooks {

std::shared_ptr<CommHook> all_reduce();  ///< What no hook means.
/// Converted to the half type for the way, to nearest even; sums are taken in f32. Buckets of a
/// half type are left as they are. On nccl the GPU divides by the world size as it converts, and
/// NCCL sums.
std::shared_ptr<CommHook> fp16();
std::shared_ptr<CommHook> bf16();
/// Communicates nothing: gradients stay this rank's. To measure what the communication costs.
std::shared_ptr<CommHook> noop();

/// "PowerSGD: Practical Low-Rank Gradient Compression" (NeurIPS 2019), as PyTorch has it: matrices
/// are sent as two thin ones, the rest as it is. On nccl `rank` is 8 at most.
struct PowerSgdOptions {
  int rank = 1;                         ///< Of the approximation.
  int start_step = 1000;                ///< Steps before it are averaged in full.
  double min_compression_rate = 2;      ///< Matrices that would shrink by less are sent in full.
  bool use_error_feedback = true;       ///< What was lost is added to the next gradient.
  bool warm_start = true;               ///< Begins with the last step's factors.
  double orthogonalization_epsilon = 0; /**< Added to norms; above 0 where gradients may vanish. */
  std::uint64_t seed = 0;               ///< Of the first factors.
};
std::shared_ptr<CommHook> power_sgd(const PowerSgdOptions& options = {});

/// A hook of one collective. `start` as in CommHook; `end`, if given, too.
std::shared_ptr<CommHook> custom(
    std::string name,
    std::function<std::optional<Work>(ProcessGroup&, const GradientBucket&)> start,
    std::function<void(ProcessGroup&, const GradientBucket&)> end = {});

}  // namespace hooks
}  // namespace ddprun
