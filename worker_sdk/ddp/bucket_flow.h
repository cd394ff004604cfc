#pragma once
// Carries buckets through their hook: starts them in order, follows up hooks of several
// collectives, hands finished ones on, and notes when. Used by distributed_data_parallel.cc, under
// its lock.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/ddp/buckets.h"
#include "worker_sdk/timer/device_phases.h"
#include "worker_sdk/timer/sync_window.h"

namespace ddprun::worker_sdk {

class BucketFlow {
 public:
  using Reduced = std::function<void(const GradientBucket&)>;

  void set_reduced(Reduced reduced) { reduced_ = std::move(reduced); }
  // Sets another hook, or other buckets. Drops collectives in progress.
  void use(std::unique_ptr<CommHook> hook) { hook_ = std::move(hook); }
  void use(ProcessGroup& group, BucketSet& buckets);

  void begin();               // Begins a new pass.
  void start(std::size_t b);  // Once per bucket and pass, in order.
  void poll();                // Hands on what is done by now, if anything is called for it.
  // Waits until all that was started has ended. After the first error, which is returned, no
  // further step is started.
  std::exception_ptr complete();

  std::vector<BucketTimes> take_times();  // Times of the pass that complete() ended.
  std::vector<BucketMarks> take_marks();  // Marks of it in a GPU's streams; else empty.

 private:
  void await(std::size_t b);
  void next(std::size_t b, int step);
  void hand_on();
  void complete_all();

  std::unique_ptr<CommHook> hook_;
  Reduced reduced_;
  ProcessGroup* group_ = nullptr;
  BucketSet* buckets_ = nullptr;
  std::vector<std::optional<Work>> works_;  // In progress; empty for a bucket that is done.
  std::vector<BucketTimes> times_;
  std::vector<BucketMarks> marks_;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;  // The number of buckets done and handed on.
};

}  // namespace ddprun::worker_sdk
