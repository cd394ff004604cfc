#pragma once
// Sums of gradients over shards and ranks, whose bits do not depend on which rank added which shard
// in which order: the same for every number of ranks, on every transport.
//
//   ddprun::GradientSums sums({weight.size(), bias.size()});   // Elements of each tensor.
//   sums.use(group);                                           // Again with each new group.
//   for (std::int64_t step = 0; step < steps;) {
//     sums.begin();
//     for (int shard : my_shards) sums.add(gradients_of(step, shard));   // A pass for each shard.
//     const auto result = sums.reduce(group, gradients);
//     if (result.kind == ddprun::GradientSums::Kind::over) continue;     // The step runs again.
//     optimizer.step();
//     sums.commit();
//     ++step;
//   }
//
// Gradients are added as 64-bit integers, multiples of a unit that follows the size of the
// gradients of each tensor from step to step. A tensor whose gradient grows more than 2^8-fold from
// one step to the next is `over`, and so is every tensor in the first step of a run: the step runs
// again with a fitting unit. An element below 2^-44 of the largest of its tensor counts as zero.
//
// Weight the loss of a shard by its samples over those of the global batch, or divide by the global
// batch in reduce(); never divide by the number of ranks. A shard's own gradient has the same bits
// only from the same number of threads, instruction set and libraries.

#include "ddprun/cxx20.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

struct GradientSumOptions {
  /// False: f32 sums with the same calls, of half the bytes; their bits depend on the ranks.
  bool exact = true;
  /// Must be equal on all ranks; reduce() checks it. A hash of everything else that the bits of a
  /// shard's gradient depend on, such as versions of libraries and the number of threads.
  std::uint64_t equal = 0;
  /// Sums are reduced in buckets of this size, each a part of a tensor or several.
  std::size_t bucket_bytes = std::size_t{2} << 20;
};

/// Arrays of f32 in host memory; not for groups on nccl. Not thread-safe. All ranks construct it
/// with the same arguments.
class GradientSums {
 public:
  enum class Kind {
    good,        ///< `gradients` has the sums.
    over,        ///< The step must run again, from begin(). The contents of `gradients` are lost.
    not_finite,  ///< Some gradient was infinite or not a number: so is the sum of its tensor. The
                 ///< sums of other tensors are good.
  };
  struct Result {
    Kind kind = Kind::good;
    std::int64_t note = 0;                 ///< The sum of what each rank passed.
    std::vector<std::int64_t> notes = {};  ///< The sums of Call::notes, then zeros.
    std::int64_t shards = 0;               ///< add() calls of all ranks in this step.
    std::size_t tensor = 0;                ///< With `over` and `not_finite`: the first such tensor.
  };
  struct Call {
    double divide_by = 1;   ///< The sums are divided by it, rounded once; above 0.
    std::int64_t note = 0;  ///< For the caller's use, such as a vote on whether to stop.
    /// Further numbers that are summed over all ranks: at most notes_most(world size).
    std::span<const std::int64_t> notes = {};
  };

  static constexpr std::size_t notes_most(int world_size) {
    return static_cast<std::size_t>(world_size) + 8;
  }

  /// `sizes`: elements of each tensor. Throws Error(bad_argument).
  explicit GradientSums(std::vector<std::size_t> sizes, const GradientSumOptions& options = {});
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;
  ~GradientSums();

  /// Allocates the sums in memory of `group`, which may end before them, and frees those of the
  /// previous group. A step in progress begins again. Collective. Throws Error(unsupported) on
  /// nccl.
  void use(ProcessGroup& group);

  /// Starts a step, or starts it again.
  void begin();
  /// Between begin() and the first add(): the memory from which that add() takes the gradient of a
  /// tensor, with room for all its elements. A gradient that is already there is not copied. Null
  /// if there is no such memory: exact sums over several hosts are integers from the start. The
  /// pointer keeps the memory alive. Throws Error(bad_argument).
  std::shared_ptr<float> first(std::size_t tensor) const;
  /// Adds the gradients of one shard: an array for each tensor, empty if it has no gradient. At
  /// most 2048 shards per step, of all ranks.
  void add(std::span<const std::span<const float>> gradients);
  /// A hash of what add() would add of these gradients: equal on ranks that have computed the same,
  /// with the same committed steps. Call it between begin() and reduce().
  std::uint64_t hash(std::span<const std::span<const float>> gradients) const;
  /// Between begin() and reduce(): whether all that add() was given so far is finite. Without a
  /// pass of its own: `exact` sums find it as they add, others do not, and return true.
  bool is_finite() const;
  /// Ends the step: sums over all ranks of `group`, that of use(); the same result on every rank.
  /// `gradients`, an array for each tensor, may be those of the last add(); an empty array is
  /// skipped. Without any array the sums stay in their memory, see sum(). Collective. Throws
  /// Error(mismatch) if ranks differ in state, sizes, divisor or GradientSumOptions::equal, and
  /// Error(bad_argument) on every rank if there were too many shards.
  Result reduce(ProcessGroup& group, std::span<const std::span<float>> gradients, const Call& call);
  Result reduce(ProcessGroup& group, std::span<const std::span<float>> gradients) {
    return reduce(group, gradients, Call{});
  }
  /// After a reduce() without arrays: the sums of a tensor, for all its elements; null if it has
  /// none. The caller may change them until the next begin(). The pointer keeps the memory alive.
  /// Throws Error(bad_argument).
  std::shared_ptr<float> sum(std::size_t tensor) const;
  /// Keeps the units that reduce() determined for the next step. Call it for every committed step,
  /// and only then: an abandoned step leaves no trace.
  void commit();

  /// The units of the committed steps, as bytes: part of a checkpoint, and of the state that a new
  /// rank receives.
  std::string state() const;
  /// Restores a result of state() for the same sizes. A step in progress begins again. Throws
  /// Error(mismatch).
  void restore(std::string_view state);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
