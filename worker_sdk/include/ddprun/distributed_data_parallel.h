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
// ranks issue the same collectives. libtorch users include ddprun/torch.h, which drives this class
// by autograd hooks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// One trainable array of f32, f64, f16 or bf16. `value` is broadcast from rank 0 at the start and
/// is not touched afterwards.
struct Parameter {
  std::string name;  ///< For messages only.
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
};

/// Time that gradients took on this rank, in one synchronised step or (total()) in several.
struct SyncReport {
  int steps = 0;
  std::chrono::nanoseconds comm{0};     ///< Sum of the durations of the buckets' all-reduces.
  std::chrono::nanoseconds exposed{0};  ///< How long finish_backward() had to wait for them.
  std::size_t bytes = 0;                ///< Gradient bytes reduced.
  int buckets = 0;
  std::chrono::nanoseconds overlapped() const noexcept { return comm - exposed; }
};

class DistributedDataParallel {
 public:
  /// Checks with all ranks that number, shapes and types of the parameters and the options agree (a
  /// mismatch names rank, host and parameter on every rank), then broadcasts the values of rank 0.
  /// Parameters are given in the order of the forward pass: buckets are filled from the last to the
  /// first. `group` must outlive this.
  DistributedDataParallel(ProcessGroup& group, std::vector<Parameter> parameters,
                          const DdpOptions& options = {});
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();

  /// Where the gradient of parameter `i` lives: a view into its bucket, 16-byte aligned, zero at
  /// first, valid until this is destroyed or, if gradient_memory(i) is held, until that is.
  Buffer gradient(std::size_t i);
  std::shared_ptr<void> gradient_memory(std::size_t i) const;
  void
  zero_gradients();  ///< All of them; for callers that add to what is there. Not during a pass.

  void begin_backward();
  /// The gradient of parameter `i` is written, and must be left alone until finish_backward()
  /// returns. From any thread. Once for each parameter and pass; a second time throws
  /// Error(bad_argument).
  void mark_ready(std::size_t i);
  /// Waits for the reductions. Throws Error(bad_argument) naming the parameters that were never
  /// marked.
  void finish_backward();

  /// While the result lives, passes that begin communicate nothing: the caller adds to the
  /// gradients, and the next synchronised pass averages the sums. The result must not outlive this.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    NoSync(const NoSync&) = delete;
    ~NoSync();

   private:
    DistributedDataParallel& ddp_;
  };
  NoSync no_sync() { return NoSync(*this); }
  bool synchronises() const noexcept;  ///< False inside no_sync().

  const SyncReport& last_step() const noexcept;  ///< Of the last synchronised pass that finished.
  SyncReport total() const noexcept;             ///< Over all synchronised steps so far.

  /// Which parameters share a bucket, in launch order.
  std::vector<std::vector<std::size_t>> buckets() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
