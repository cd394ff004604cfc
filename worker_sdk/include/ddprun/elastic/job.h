#pragma once
// A training loop whose ranks may come and go while its processes stay.
//
//   ddprun::elastic::Job job;
//   job.keep("weights", ddprun::buffer(weights.data(), weights.size()));
//   job.run(10'000, [&](ddprun::elastic::Step& step) {
//     const auto gradient = compute(step.number(), step.shards(64));
//     step.group().all_reduce(ddprun::buffer(gradient.data(), gradient.size()));
//     step.commit([&] { update(weights, gradient); });
//   });
//
// A round is a span of time in which the same ranks train together. When a rank dies, all others
// leave its round at once: operations of the round's group throw, run() catches the error, joins
// the next round, and calls the body again for the step that was not committed. When ranks are to
// be added, all leave the round after the same committed step, and no step is repeated. In the new
// round ranks that lack the newest committed state, such as a new process, receive it from one that
// has it.
//
// Under a launcher that assigns seats (ddprun, through DDPRUN_WORKER_LINK), a worker with a Job can
// take a new seat in each round. Elsewhere the job has the fixed ranks of ProcessGroup::init, or is
// alone, and errors of lost peers end run().

#include "ddprun/cxx20.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/process_group.h"

namespace ddprun::elastic {

struct JobOptions {
  /// Backend, host and time-outs of each round's group. init_method, rank and world_size only have
  /// an effect without a launcher that assigns seats. init_timeout must be longer than any rank
  /// computes without calling the group, because the others wait for that rank in the next round.
  InitOptions init = {};
  /// Under a launcher that assigns seats, a shard of a step that has ended two processes ends the
  /// run, and the verdict names its samples. True: no rank computes the shard any more, and the run
  /// continues without it.
  bool skip_poison = false;
  /// The job computes in no round with fewer ranks. Under a launcher that assigns seats the ranks
  /// wait for others, with their state; if not enough join within --rdzv-conf join_timeout (10
  /// min), the run ends with exit code 3. Elsewhere a smaller group is refused. 0: any number of
  /// ranks.
  int min_world = 0;
  /// Above 0: whenever a multiple of `check_every` steps is committed, and before the functions of
  /// between(), all ranks compare the arrays that they keep; run() throws `mismatch`, which names
  /// array and ranks, on all of them if they differ. Costs one pass over the arrays and an exchange
  /// of 8 bytes. State kept by functions is not compared, because equal state may have different
  /// bytes. The same on all ranks.
  std::int64_t check_every = 0;
  /// False: Step::shards() gives ranks that are slow fewer shards, and fast ones more; at most one
  /// shard moves after a step, unless a rank takes more than twice as long as another. True: every
  /// rank has as many as any other, or one more. The same on all ranks.
  bool even_shards = false;
  /// The work in a shard, such as the sum of its sequences' lengths, if that differs between
  /// shards: so that a rank is not taken for slow whose shards are long. Empty: its samples, or 1
  /// for Step::shards(int).
  std::function<double(std::int64_t step, int shard)> shard_weight = {};
  /// Percent of all shards of all steps that a second rank computes as well, on another host if
  /// there is one. If the two differ, the step is not committed, a third rank decides which of them
  /// is wrong, and that one's run() throws `wrong_result`. Needs a body that passes its results to
  /// Step::audit(), as ElasticGradients does. Below 0: the value of DDPRUN_AUDIT, or 0. The same on
  /// all ranks.
  double audit = -1;
  /// If the run has a memory folder (ddprun --memory-folder), the kept state is saved there after
  /// every so many steps, and when no worker is left that has the state, the job goes on from the
  /// newest whole copy, if that is newer than what was given to Job::resume(). 0: as many steps as
  /// keep the cost at 0.5 % of their time, 10 until that is measured; -1: never. The same on all
  /// ranks.
  std::int64_t memory_every = 0;
};

/// Since the Job was made.
struct JobCounters {
  std::int64_t rounds = 0;          ///< Rounds that were joined.
  std::int64_t planned = 0;         ///< Of these, entered after all ranks had left at one boundary.
  std::int64_t repeated_steps = 0;  ///< Steps whose body was called again after a change.
  std::uint64_t bytes_sent = 0;     ///< Of kept state, as its source.
  std::uint64_t bytes_received = 0;
  std::int64_t moved_shards = 0;    ///< From slow ranks to faster ones, of all ranks.
  std::int64_t audited_shards = 0;  ///< Shards of other ranks that this one has computed as well.
  /// From the last commit before each change, or the beginning of run(), to the first call of the
  /// body after it.
  std::chrono::microseconds lost{0};
};

/// One step, while its body runs. Must not be used after the body has returned, nor by two threads
/// at a time.
class Step {
 public:
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::int64_t number() const noexcept;  ///< From 0; the same number again if the step is repeated.
  bool is_repeated() const noexcept;  ///< The body was called for this number before, on this rank.
  int round() const noexcept;         ///< Rises with each change.

  /// The ranks of this round. Must be used neither after the step nor through a handle of share():
  /// recreate everything that depends on a group when round() changes. Once the round is over,
  /// every call throws Error, mostly `membership_changed`. The body must let this error pass; if it
  /// does not, commit() throws. Within `apply` of commit() calls of any group throw `bad_argument`.
  /// Ends the shard of begin_shard().
  ProcessGroup& group() noexcept;
  int rank() const;
  int world_size() const;

  /// Shards of this rank in this step, of `shards` in all: contiguous, and at least one. How many
  /// follows the speed of the ranks, see JobOptions::even_shards, and may differ in the next step,
  /// so call it in each. All ranks call it, with the same number first; other numbers of the same
  /// step are divided evenly. Throws Error(bad_argument) if there are more ranks than shards.
  std::ranges::iota_view<int, int> shards(int shards) const;
  std::ranges::iota_view<int, int> shards(const GlobalBatches& batches) const;
  /// The same as shards(weights.size()), with the work in each shard instead of
  /// JobOptions::shard_weight.
  std::ranges::iota_view<int, int> shards(std::span<const double> weights) const;

  /// Reports that this rank computes `shard` of this step from now on, so that the launcher can
  /// name the shard if the process fails meanwhile. False: the shard has ended two processes and
  /// must be skipped; see JobOptions::skip_poison. `content`: a description of the shard for
  /// people, the same on every rank. Throws `membership_changed` once the round is over, because
  /// further work would be lost and the others wait in the next round.
  bool begin_shard(int shard, std::string_view content = {});
  /// Whether begin_shard() would return false: the same on all ranks.
  bool skips(int shard) const;
  /// begin_shard() and the samples of the shard: none if it is to be skipped.
  std::vector<Sample> samples(const GlobalBatches& batches, int shard);

  /// Shards of other ranks that this rank computes as well in this step, without adding them to its
  /// result (JobOptions::audit). Of the number of shards that shards() was called with first.
  std::vector<int> audits() const;
  /// Whether `shard` is one that two ranks compute: then both call audit().
  bool is_audited(int shard) const;
  /// `hash`: of what this rank has computed for the shard, gradient and loss, such as
  /// GradientSums::hash(): equal on all ranks that compute it. Has no effect for other shards.
  void audit(int shard, std::uint64_t hash);

  /// Writes a bundle for `ddprun replay`, if there is a folder for bundles (--bundle-folder of
  /// ddprun, DDPRUN_BUNDLES): the kept state, this step, and `shard`, in which the program found
  /// something, such as a loss that is too large; -1: the shard in progress. `why`: for people. The
  /// replay compares it, and `hash`, that of audit(), if it is not 0. One bundle per step; none if
  /// the step before has one, as what follows from a fault is not its cause. It is written before
  /// the step is reduced or committed, or as the body ends; kept state must not change until then.
  /// ElasticGradients captures a shard whose gradient is not finite; an exception of the body is
  /// captured anyway.
  void capture(int shard, std::string_view why, std::uint64_t hash = 0);

  /// Ends the step: calls `apply`, which changes the kept state and communicates with no rank. All
  /// ranks call it once, after the operations that combine their results. Throws
  /// `membership_changed`, without calling `apply`, if an operation of this step has failed. Within
  /// `apply`, commit() and calls of any group throw `bad_argument`.
  ///
  /// Ranks agree here whether to leave the round, and exchange how fast each has been: by an
  /// all_reduce of a number per rank, unless the body has called reduce() or voted(), and unless
  /// the job is alone or its ranks are fixed.
  void commit(const std::function<void()>& apply = {});

  /// sums.reduce() over the ranks of this step, which also carries what commit() would need a
  /// reduction for. After a result other than `over`, commit() communicates no more. Of
  /// Call::notes, three and one for each rank are taken.
  GradientSums::Result reduce(GradientSums& sums, std::span<const std::span<float>> gradients,
                              const GradientSums::Call& call);
  GradientSums::Result reduce(GradientSums& sums, std::span<const std::span<float>> gradients) {
    return reduce(sums, gradients, GradientSums::Call{});
  }

  /// For a reduction in the body other than reduce() that carries one more number, so that commit()
  /// needs no reduction of its own: this rank's vote, 0 or 1. The ranks must leave if the sum or
  /// maximum of all votes is not 0. Does not change within a step. Steps that end this way do not
  /// show how fast the ranks are, so no shard moves.
  std::int32_t vote();
  /// The result of that reduction; the same on all ranks.
  void voted(bool leave);

 private:
  friend class JobInside;
  struct State;
  explicit Step(State& state) : state_(state) {}
  State& state_;
};

/// Neither movable nor usable in a forked child. All calls must come from one thread. Under a
/// launcher that gives seats, a process can have one Job in its life.
class Job {
 public:
  using Save = std::function<std::string()>;
  using Load = std::function<void(std::string_view)>;
  using Body = std::function<void(Step&)>;
  using Between = std::function<void(ProcessGroup&)>;

  /// Reports to the launcher that this worker is ready for a seat, so construct it after slow work.
  /// Throws Error(bad_environment) if DDPRUN_WORKER_LINK names no link, as after an earlier Job has
  /// ended, and Error(bad_argument) if this process has another Job that uses the link.
  explicit Job(JobOptions options = {});
  /// If run() has thrown and its steps are not committed, end the process within 10 s, with a code
  /// other than 0 if the others are to go on without it: if it then lives, or has exited with 0,
  /// their run() throws `peer_lost`.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// State that is equal on all ranks between steps, and that a new rank receives: weights,
  /// optimizer state, counters. Only `apply` of commit() may change it. All ranks keep the same
  /// names in the same order, before run(). While a rank receives state it needs memory for a
  /// second copy, so that a source that dies leaves no state half overwritten. `array`: host memory
  /// or, on nccl, memory of the rank's GPU; the same size on all ranks.
  Job& keep(std::string name, Buffer array);
  /// For state of variable size. `save` is called on the source, `load` on the ranks that receive.
  Job& keep(std::string name, Save save, Load load);

  /// State of which every rank has a part, and one other rank, on another node if there is one, a
  /// copy: commit() updates the copy. When the ranks change, the parts are redistributed, and those
  /// of ranks that have gone are taken from the copies. The result lives as long as the job.
  Sharded& keep_sharded(std::string name, ShardedOptions options);

  /// Declares, before run(), that the kept state is from a checkpoint after `step` committed steps.
  /// Without this call the first round begins with the kept state of rank 0. If a later run() is
  /// for fewer steps, none runs, and rank 0 prints a warning. May also be called, on all ranks,
  /// after run() has thrown `state_lost`; then run() may be called again.
  void resume(std::int64_t step);

  /// Calls `body` between steps, whenever a multiple of `every` steps is committed, the last of
  /// run() included: for evaluation and checkpoints of the state after committed() steps. `body`
  /// may use the group, which is that of the round, so create a CheckpointWriter in it; it must not
  /// change kept state. If the membership changes meanwhile, it is called again on all ranks.
  Job& between(std::int64_t every, Between body);

  /// Calls `body` for each step until `steps` (0 or more) are committed, by all ranks; if they are
  /// already, joins the others and returns. May be called again, with more steps. Exceptions of the
  /// body pass through, unless the reason is the end of the round: then the body is called again.
  /// Therefore the body may change kept state in commit() only, and everything else must be
  /// computable twice. A body that returns must have called commit().
  ///
  /// A rank that is added while the others are in a later run() returns from the earlier calls at
  /// once, with the others' state. So code between calls of run() must not use a group; use
  /// between() for that.
  ///
  /// Where shards are audited, a body may be called again for the same step in the same round,
  /// after commit() or reduce() has thrown `membership_changed`.
  ///
  /// Errors of its own: `wrong_result` if an audit has found that this rank computes wrong, or on
  /// all ranks, if it cannot be decided which does or the ranks are fixed; `bad_argument` for a
  /// negative number of steps; `mismatch` if ranks keep different state or the agent's messages
  /// cannot be understood; `corrupt` if state arrives damaged, if `apply` has failed on all ranks,
  /// so that no rank has a whole state, or if it has failed on this rank in an earlier run() of
  /// this round; `state_lost` if no rank has a sound copy of some part of sharded state, so that
  /// only a checkpoint is left; `unreachable` if the agent is gone and a seat is needed.
  void run(std::int64_t steps, const Body& body);

  std::int64_t committed() const noexcept;  ///< Steps.
  /// In the round that this process is in or, between rounds and after run(), was in last: also if
  /// it has joined after the last step, and so has never had a Step. -1 and 0 before the first.
  int rank() const noexcept;
  int world_size() const noexcept;
  const JobCounters& counters() const noexcept;

 private:
  std::unique_ptr<class JobInside> inside_;
};

}  // namespace ddprun::elastic
