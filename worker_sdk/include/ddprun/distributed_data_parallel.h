#pragma once
// Gradient averaging that overlaps the backward pass: a framework-neutral DistributedDataParallel.
//
//   ddprun::DistributedDataParallel ddp(group, params);
//   ... forward ...
//   ddp.begin_backward();
//   for (i : layers, last first) { write the gradient into ddp.gradient(i); ddp.mark_ready(i); }
//   ddp.finish_backward();                     // ddp.gradient(i) now holds the average over ranks.
//
// The algorithm is that of "PyTorch Distributed" (VLDB 2020): gradients live in flat buckets; a
// bucket is reduced as soon as all its gradients are there, strictly in bucket order, so that all
// ranks issue the same collectives. The first pass holds its buckets until the last gradient is
// there; then they are rebuilt in rank 0's order of arrival. libtorch users include ddprun/torch.h,
// which drives this class by autograd hooks.

#include "ddprun/cxx20.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddprun/comm_hook.h"
#include "ddprun/process_group.h"
#include "ddprun/sync_report.h"

namespace ddprun {

/// One trainable array of f32, f64, f16 or bf16. `value` is written at the start (broadcast from
/// rank 0), by reconfigure() and by join(), and read by checksum_every; else it is not touched.
struct Parameter {
  std::string name;  ///< Equal on all ranks.
  Buffer value;
  std::vector<std::int64_t> shape;
};

/// Must be equal on all ranks.
struct DdpOptions {
  /// A bucket is closed when it holds at least this much: the first one is small, so that
  /// communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  bool broadcast_at_start = true;  ///< Else the caller makes the values equal.
  /// Parameters may get no gradient in a pass, other ones on other ranks. Who used what travels at
  /// the end of the last bucket, one element a parameter, so it costs no collective. The buckets
  /// then are not held in the first pass, and not rebuilt.
  bool find_unused = false;
  /// Every pass marks the same parameters equally often as the first one: for layers that are run
  /// again by checkpointing. Overrides find_unused.
  bool static_graph = false;
  /// Ranks may have different numbers of passes: see join(). Costs one all_reduce of 8 bytes a
  /// pass. Not with checksum_every.
  bool uneven_inputs = false;
  /// Compares checksums of the parameters every so many steps (0: never). If they differ, every
  /// rank throws Error(mismatch), which names the parameter and the rank that has diverged.
  int checksum_every = 0;
  /// How a bucket is averaged; nothing: by all_reduce. One hook for each DistributedDataParallel.
  std::shared_ptr<CommHook> hook = {};
  SyncTimerOptions timer = {};
};

/// Movable; one that was moved from may be destroyed or assigned to, and every other call throws
/// Error(bad_argument), as does the number of a parameter that there is not. One thread at a time
/// may call it, but for mark_ready() and what is const except gradient_memory(), which any thread
/// may call.
class DistributedDataParallel {
  struct Impl;

 public:
  /// Checks with all ranks that number, names, shapes and types of the parameters and the options
  /// agree (a mismatch names rank, host and parameter on every rank), then broadcasts the values of
  /// rank 0. Parameters are given in the order of the forward pass: buckets are filled from the
  /// last to the first. Shares the group, so that `group` may move or end before this.
  DistributedDataParallel(ProcessGroup& group, std::vector<Parameter> parameters,
                          const DdpOptions& options = {});
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();  ///< Says so on stderr if a pass is under way.

  /// Where the gradient of parameter `i` lives: a view into its bucket, 16-byte aligned, zero at
  /// first. Valid until the next begin_backward(), rebuild() or reconfigure(), which may move
  /// it; the memory itself lives as long as gradient_memory(i) is held.
  Buffer gradient(std::size_t i);
  std::shared_ptr<void> gradient_memory(std::size_t i) const;
  void zero_gradients();  ///< All of them; for callers that add to them. Not during a pass.

  /// For the sync timer only: the time until begin_backward() (or end_forward()) is forward's.
  void begin_forward();
  void end_forward();

  /// `unused`: parameters that get no gradient in this pass, as far as known; with find_unused
  /// only. What they contribute to the average is what their gradients hold, so zero these.
  void begin_backward(std::span<const std::size_t> unused = {});
  /// The gradient of parameter `i` is written, and must be left alone until finish_backward()
  /// returns. From any thread. Once for each parameter and pass (but see static_graph); a second
  /// time throws Error(bad_argument).
  void mark_ready(std::size_t i);
  /// Waits for the reductions. Throws Error(bad_argument) naming the parameters that were never
  /// marked, unless find_unused is set.
  void finish_backward();
  /// Ends a pass that an exception has ended on this rank; nothing, if none is under way. What is
  /// left of the pass is reduced, of this rank with what its gradients hold, so that the peers'
  /// finish_backward() returns. They must hear of it before they step, for example by an all_reduce
  /// (min) of "all well" after each pass. Throws Error if the group fails.
  void cancel_backward();
  /// Did any rank mark the parameter in the last synchronised pass, or in a local one before it?
  /// Without find_unused and static_graph: true.
  bool used(std::size_t i) const;

  /// Puts the gradients into the buckets that the first pass asks for, if that is due; contents
  /// stay. True: gradients moved. begin_backward() does it otherwise. Collective when due.
  bool rebuild();

  /// While the result lives, passes that begin communicate nothing: the caller adds to the
  /// gradients, and the next synchronised pass averages the sums. The result must not outlive this,
  /// or what this is moved into.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    NoSync(const NoSync&) = delete;
    ~NoSync();

   private:
    Impl& ddp_;
  };
  NoSync no_sync() { return NoSync(*this); }
  bool synchronises() const;  ///< False inside no_sync().

  /// With uneven_inputs: to be called on every rank when it has no more input. Takes part in the
  /// others' passes with zeros (their gradients are still divided by the world size) until nobody
  /// has input, then all take the values of the rank that went on longest. Gradients are zero then.
  void join();

  /// The optimizer in the backward pass: called for each bucket once it holds the average, while
  /// later buckets still fill, by the thread that calls mark_ready() or finish_backward(). It must
  /// not call this object. Between passes only; empty: nobody.
  void on_bucket_reduced(std::function<void(const GradientBucket&)> reduced);

  /// Goes on with other peers after a membership change. Forgets the pass under way and all
  /// gradients; the values become those of rank 0 of `next`, if broadcast_at_start is set.
  /// Collective on `next`, where fresh ranks construct. Waits for operations of the old group: if
  /// a peer of that is lost, abort() it first. Views and `unused` start afresh.
  void reconfigure(ProcessGroup& next);

  /// Where the values live has changed, not what they are.
  void set_value(std::size_t i, Buffer value);

  SyncReport last_step() const;  ///< Of the last synchronised pass that finished.
  SyncReport total() const;      ///< Over all synchronised steps so far.
  /// What all ranks' times said about the last complete window; equal on all ranks.
  std::optional<SyncWindow> last_window() const;
  void on_window(std::function<void(const SyncWindow&)> heard);  ///< Called in finish_backward().
  /// The last 64 steps of this rank in Chrome's trace format, as Perfetto shows it.
  std::string trace() const;

  /// Which parameters share a bucket, in launch order.
  std::vector<std::vector<std::size_t>> buckets() const;

 private:
  class Locked;
  Impl& inside() const;   // Throws if this was moved from.
  Locked locked() const;  // The same, with the lock that guards it.
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
