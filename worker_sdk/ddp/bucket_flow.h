#pragma once
// Carries buckets through their hook: starts them in order, follows up hooks of several
// collectives, hands finished ones on, and notes when. Used by distributed_data_parallel.cc, under
// its lock.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker_sdk/ddp/bucket_set.h"
#include "worker_sdk/timer/bucket_marks.h"
#include "worker_sdk/timer/step_times.h"

namespace ddprun::worker_sdk {

class BucketFlow {
 public:
  using Reduced = std::function<void(const GradientBucket&)>;

  explicit BucketFlow(std::shared_ptr<CommHook> hook) : hook_(std::move(hook)) {}

  void set_reduced(Reduced reduced) { reduced_ = std::move(reduced); }
  // Other buckets or another group from now on. Drops what is under way.
  void use(ProcessGroup& group, const BucketSet& buckets);

  void begin();               // A new pass.
  void start(std::size_t b);  // Once for each bucket and pass, in order.
  void poll();                // Hands on what is finished by now, if somebody wants to hear of it.
  // Waits for all that was started, to its end. The first error counts; then nothing more is done.
  std::exception_ptr complete();

  std::vector<BucketTimes> take_times();  // Of the pass that complete() ended.
  std::vector<BucketMarks> take_marks();  // The same in a GPU's streams; empty ones elsewhere.

 private:
  void await(std::size_t b);
  void end(std::size_t b);
  void complete_all();

  std::shared_ptr<CommHook> hook_;
  Reduced reduced_;
  ProcessGroup* group_ = nullptr;
  const BucketSet* buckets_ = nullptr;
  std::vector<std::optional<Work>> works_;
  std::vector<BucketTimes> times_;
  std::vector<BucketMarks> marks_;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
};

}  // namespace ddprun::worker_sdk
