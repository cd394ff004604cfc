#pragma once
// The memory of all buckets: where each gradient lives, and the tail that says which parameters
// were used. Used by distributed_data_parallel.cc; the packing is in buckets.cc.

#include <memory>
#include <vector>

#include "ddprun/comm_hook.h"
#include "ddprun/distributed_data_parallel.h"

namespace ddprun::worker_sdk {

using BucketOrder = std::vector<std::vector<std::size_t>>;

// Gradients are expected last layer first, so that is the order in which buckets are filled and
// launched until the first pass has shown another one.
BucketOrder expected_order(const std::vector<Parameter>& parameters, const DdpOptions& options);
BucketOrder order_of_arrival(const std::vector<Parameter>& parameters, const DdpOptions& options,
                             const std::vector<std::size_t>& arrival);

class BucketSet {
 public:
  // Collective: every rank allocates the same. With `tail`, the last bucket ends with one element a
  // parameter.
  BucketSet(ProcessGroup& group, const std::vector<Parameter>& parameters, BucketOrder order,
            bool tail);

  std::size_t size() const { return buckets_.size(); }
  const BucketOrder& order() const { return order_; }
  GradientBucket& bucket(std::size_t b) { return buckets_[b]; }
  const GradientBucket& bucket(std::size_t b) const { return buckets_[b]; }
  Buffer gradient(std::size_t parameter) const { return gradients_.at(parameter); }
  std::shared_ptr<void> memory(std::size_t parameter) const { return memory_[home_.at(parameter)]; }

  void zero(ProcessGroup& group);
  // Gradients and who was used, from buckets of the same parameters.
  void take_over(ProcessGroup& group, BucketSet& from);
  // Uses the gradients' memory for the way, so they are lost. Collective.
  void broadcast_values(ProcessGroup& group, const std::vector<Parameter>& parameters, int root);

  // The average over ranks is above zero where any rank's was true. Nothing without a tail.
  void write_tail(ProcessGroup& group, const std::vector<bool>& used);
  void tail_has_come();  // Its collective is over. Does nothing unless one was written.
  // In the last pass whose tail has come: while one is in flight another thread writes to it.
  // Before the first: false. Without a tail: true.
  bool used(ProcessGroup& group, std::size_t parameter);

 private:
  void read_tail(ProcessGroup& group);
  void lay_out_bucket(ProcessGroup& group, const std::vector<Parameter>& parameters, bool tail);

  BucketOrder order_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::shared_ptr<void>> memory_;  // By bucket.
  std::vector<Buffer> gradients_;              // By parameter.
  std::vector<std::size_t> home_;              // The bucket of each parameter.
  std::vector<bool> used_;                     // By parameter, as of the last tail read.
  bool in_flight_ = false;                     // From write_tail() to tail_has_come().
  bool unread_ = false;                        // The memory has what used_ has not yet.
};

}  // namespace ddprun::worker_sdk
