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
// Under a launcher that gives a worker its seats (ddprun, by DDPRUN_WORKER_LINK), a Job makes the
// worker one that can be seated again. Elsewhere the job has the fixed ranks of ProcessGroup::init,
// or is alone, and errors of lost peers end run().

#include "ddprun/cxx20.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/init_options.h"
#include "ddprun/process_group.h"

namespace ddprun::elastic {

struct JobOptions {
  /// Backend, host and time-outs of each round's group. init_method, rank and world_size have an
  /// effect only where no launcher gives seats. init_timeout needs to be longer than any rank
  /// computes without a call of the group: the others wait for it in the next round.
  InitOptions init = {};
  /// Under a launcher that gives seats, a shard of a step that has ended two processes ends the
  /// run, which names its samples. True: nobody computes it any more, and the run goes on without
  /// them.
  bool skip_poison = false;
};

/// Since the Job was made.
struct JobCounters {
  std::int64_t rounds = 0;          ///< Rounds that were joined.
  std::int64_t planned = 0;         ///< Of these, entered after all had left at one boundary.
  std::int64_t repeated_steps = 0;  ///< Steps whose body was called again after a change.
  std::uint64_t bytes_sent = 0;     ///< Of kept state, as its source.
  std::uint64_t bytes_received = 0;
  /// From the last commit before each change, or the beginning of run(), to the first call of the
  /// body after it.
  std::chrono::microseconds lost{0};
};

/// One step, while its body runs. May not be used after the body has returned, nor by two threads
/// at a time.
class Step {
 public:
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  std::int64_t number() const noexcept;  ///< From 0; the same number again if the step is repeated.
  bool is_repeated() const noexcept;     ///< The body was called for this number before, here.
  int round() const noexcept;            ///< Rises with each change.

  /// The ranks of this round. Must be used neither after the step nor through a handle of share():
  /// make what depends on a group anew when round() differs. Once the round is over, every call
  /// throws Error, mostly `membership_changed`. The body lets this error pass. If it does not,
  /// commit() throws. Ends what begin_shard() has begun.
  ProcessGroup& group() noexcept;
  int rank() const;
  int world_size() const;

  /// Shards of this rank in this round, of `shards` in all.
  std::ranges::iota_view<int, int> shards(int shards) const;
  std::ranges::iota_view<int, int> shards(const GlobalBatches& batches) const;

  /// Says that this rank computes `shard` of this step from now on, so that the launcher can name
  /// it if the process fails meanwhile. False: it has ended two processes, and is to be skipped;
  /// see JobOptions::skip_poison. `content`: what the shard has, for people; the same on every
  /// rank. Throws `membership_changed` once the round is over: what is computed then is lost, and
  /// the others wait in the next round.
  bool begin_shard(int shard, std::string_view content = {});
  /// Whether begin_shard() would return false: the same on all ranks.
  bool skips(int shard) const;
  /// begin_shard() and the samples of the shard: none if it is to be skipped.
  std::vector<Sample> samples(const GlobalBatches& batches, int shard);

  /// Ends the step: calls `apply`, which changes the kept state and must communicate with nobody.
  /// To be called once, by all ranks, after the operations that combine what they have computed.
  /// Throws `membership_changed`, without calling `apply`, if an operation of this step has failed.
  ///
  /// Ranks agree here whether to leave the round: by an all_reduce of one number, unless the body
  /// has called voted(), and unless the job is alone or its ranks are fixed.
  void commit(const std::function<void()>& apply = {});

  /// For a reduction of the body's that carries one more number, so that commit() needs none of its
  /// own: this rank's vote, 0 or 1; the sum or the maximum of all ranks' votes is != 0 if they are
  /// to leave. Does not change within a step.
  std::int32_t vote();
  /// What the reduction has given; the same on all ranks.
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

  /// Tells the launcher that this worker is ready for a seat; so it is best made after whatever
  /// takes long. Throws Error(bad_environment) if DDPRUN_WORKER_LINK names no link.
  explicit Job(JobOptions options = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// State that all ranks have alike between steps, and a new rank receives: weights, the state of
  /// an optimizer, counters. Only `apply` of commit() may change it. All ranks keep the same names
  /// in the same order, before run(). While a rank receives state it needs memory for all of it
  /// once more, so that a source that dies leaves nothing half overwritten.
  /// `array`: host memory or, on nccl, memory of the rank's GPU; the same size on all ranks.
  Job& keep(std::string name, Buffer array);
  /// For state of variable size. `save` is called on the source, `load` on the ranks that receive.
  Job& keep(std::string name, Save save, Load load);

  /// State of which every rank has a part, and one other rank, on another node where there is one,
  /// a copy: commit() brings it there. When the ranks change, the parts are divided anew, and those
  /// of ranks that have gone come from the copies. The result lives as long as the job.
  Sharded& keep_sharded(std::string name, ShardedOptions options);

  /// Says, before run(), that the kept state is that after `step` committed steps: it comes from a
  /// checkpoint. Without this call the first round begins with the kept state of rank 0. Also after
  /// run() has thrown `state_lost`, on all ranks: then run() may be called again.
  void resume(std::int64_t step);

  /// Calls `body` between steps, whenever a multiple of `every` steps is committed, the last of
  /// run() included: for evaluation and checkpoints. It may use the group, and must not change kept
  /// state. After a change in the meantime it is called again on all ranks.
  Job& between(std::int64_t every, Between body);

  /// Calls `body` for each step until `steps` are committed, by all ranks. May be called again,
  /// with more steps. What the body throws passes, unless the reason is that the round is over:
  /// then the body is called again. Therefore it may change kept state in commit() only, and must
  /// be able to compute anything else twice. A body that returns must have called commit().
  ///
  /// A rank that is added while the others are in a later run() returns from the earlier ones with
  /// the others' state, at once. So nothing between calls of run() may use a group: that is what
  /// between() is for.
  ///
  /// Errors of its own: `mismatch` if ranks keep different state or the agent's messages cannot be
  /// understood; `corrupt` if state arrives damaged, if no rank has a whole state any more, because
  /// `apply` has failed everywhere, or if it has failed here in an earlier run() of this round;
  /// `state_lost` if a part of sharded state is lost: no rank with a sound copy is left, only a
  /// checkpoint; `unreachable` if the agent is gone and a seat is needed.
  void run(std::int64_t steps, const Body& body);

  std::int64_t committed() const noexcept;  ///< Steps.
  const JobCounters& counters() const noexcept;

 private:
  std::unique_ptr<class JobInside> inside_;
};

}  // namespace ddprun::elastic
