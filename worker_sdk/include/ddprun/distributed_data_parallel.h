#pragma once
// Gradient averaging that overlaps the backward pass: a framework-neutral DistributedDataParallel.
//
//   ddprun::DistributedDataParallel ddp(group, params);
//   ... forward ...
//   ddp.begin_backward();
//   for (i : layers, last first) { write the gradient into ddp.gradient(i); ddp.mark_ready(i); }
//   ddp.finish_backward();                     // ddp.gradient(i) now holds the average over ranks.
//
// The algorithm is that of "PyTorch Distributed" (VLDB 2020): gradients are stored in flat buckets.
// A bucket is reduced once all its gradients are ready, strictly in bucket order, so that all ranks
// issue the same collectives. The first pass holds all buckets until the last gradient is ready;
// then the buckets are rebuilt in the order in which rank 0's gradients became ready. Programs with
// libtorch include ddprun/torch.h, which drives this class by autograd hooks.

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

/// One trainable array of f32, f64, f16 or bf16. The constructor (which broadcasts from rank 0),
/// reconfigure() and join() write `value`; checksum_every reads it; nothing else accesses it.
struct Parameter {
  std::string name;  ///< Equal on all ranks.
  Buffer value;
  std::vector<std::int64_t> shape;
};

/// Must be equal on all ranks.
struct DdpOptions {
  /// A bucket is complete when it holds at least this many bytes. The first bucket is small, so
  /// that communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  bool broadcast_at_start = true;  ///< If false, the caller makes values equal.
  /// Parameters may get no gradient in a pass, and ranks may differ in which. The last bucket
  /// carries one element per parameter that reports its use, so no further collective is needed.
  /// Buckets are then neither held in the first pass nor rebuilt.
  bool find_unused = false;
  /// Every pass marks the same parameters as often as the first pass did: for layers that
  /// activation checkpointing runs again. Overrides find_unused.
  bool static_graph = false;
  /// Ranks may run different numbers of passes: see join(). Costs one all_reduce of 8 bytes per
  /// pass. Excludes checksum_every.
  bool uneven_inputs = false;
  /// Compares parameter checksums every this many steps (0: never). A difference raises
  /// Error(mismatch) on every rank, which names the parameter and the diverged rank.
  int checksum_every = 0;
  /// How a bucket is averaged; empty: by all_reduce.
  CommHookFactory hook = {};
  SyncTimerOptions timer = {};
};

/// Movable; a moved-from object may be destroyed or assigned to, and every other call throws
/// Error(bad_argument), as does an index of a parameter that does not exist. Only one thread at a
/// time may call it, but any thread may call mark_ready() and the const functions except
/// gradient_memory().
class DistributedDataParallel {
  struct Impl;

 public:
  /// Checks that all ranks have the same options and the same number, names, shapes and types of
  /// parameters (a mismatch names rank, host and parameter on every rank), then broadcasts the
  /// values of rank 0. Parameters are in the order of the forward pass: buckets are filled from the
  /// last to the first. Keeps a handle of the group, so `group` may be moved or destroyed before
  /// this.
  DistributedDataParallel(ProcessGroup& group, std::vector<Parameter> parameters,
                          const DdpOptions& options = {});
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();  ///< Warns on stderr if a pass is unfinished.

  /// The gradient of parameter `i`: a view into its bucket, 16-byte aligned, initially zero. Valid
  /// until the next begin_backward(), rebuild() or reconfigure(), which may move it. The memory
  /// stays allocated while gradient_memory(i) is held.
  Buffer gradient(std::size_t i);
  std::shared_ptr<void> gradient_memory(std::size_t i) const;
  void zero_gradients();  ///< For callers that accumulate. Not during a pass.

  /// For the sync timer only: forward ends with end_forward() or begin_backward().
  void begin_forward();
  void end_forward();

  /// `unused`: parameters known to get no gradient in this pass; requires find_unused. The contents
  /// of their gradients enter the average, so the caller zeroes them.
  void begin_backward(std::span<const std::size_t> unused = {});
  /// Reports that the gradient of parameter `i` is written; the caller must not access it until
  /// finish_backward() returns. Can be called from any thread, once per parameter and pass (but see
  /// static_graph); a second call throws Error(bad_argument).
  void mark_ready(std::size_t i);
  /// Waits for the reductions. Unless find_unused is set, throws Error(bad_argument) that names the
  /// parameters never marked, after it has done what cancel_backward() does.
  void finish_backward();
  /// Ends a pass that an exception interrupted on this rank; does nothing outside a pass. Reduces
  /// the remaining buckets with the current contents of this rank's gradients, so that
  /// finish_backward() returns on the peers. The program must inform the peers before they step,
  /// for example by an all_reduce (min) of a success flag after each pass. Throws Error if the
  /// group fails.
  void cancel_backward();
  /// True if any rank marked the parameter in the last synchronised pass that has ended, or in a
  /// local pass before it; false before the first. Always true without find_unused and
  /// static_graph.
  bool used(std::size_t i) const;

  /// If due, moves the gradients with their contents into the buckets chosen after the first pass
  /// and returns true. Without this call begin_backward() does it. Collective when due.
  bool rebuild();

  /// Passes that begin while the result exists communicate nothing: the caller accumulates
  /// gradients, and the next synchronised pass averages the sums. The result must not outlive this
  /// object, or the object into which this one is moved.
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

  /// With uneven_inputs, every rank calls join() when its input ends. The rank contributes zeros to
  /// the passes of the others (still divided by the world size) until no rank has input. Then all
  /// ranks take the values of the rank with the most passes, and gradients are zero.
  void join();

  /// For an optimizer that runs within the backward pass: `reduced` is called for each bucket that
  /// holds the average, while later buckets are still being filled, by the thread that calls
  /// mark_ready() or finish_backward(). It must not call this object. Set between passes only;
  /// empty: none.
  void on_bucket_reduced(std::function<void(const GradientBucket&)> reduced);

  /// Continues with other peers after a membership change. Discards an unfinished pass and all
  /// gradients; if broadcast_at_start is set, values become those of rank 0 of `next`. Collective
  /// on `next`, where new ranks call the constructor instead. Waits for operations of the old
  /// group: if the old group lost a peer, call abort() on it first. Views and `unused` are reset.
  void reconfigure(ProcessGroup& next);

  /// Sets the new location of an unchanged value.
  void set_value(std::size_t i, Buffer value);

  SyncReport last_step() const;  ///< Of the last synchronised pass that finished.
  SyncReport total() const;      ///< Over all synchronised steps so far.
  /// The last complete window of all ranks' times; equal on all ranks.
  std::optional<SyncWindow> last_window() const;
  void on_window(std::function<void(const SyncWindow&)> heard);  ///< Called in finish_backward().
  /// The last 64 steps of this rank in Chrome's trace format, for Perfetto.
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
