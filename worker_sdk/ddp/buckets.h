#pragma once
// Which parameters share a flat gradient buffer, and where each lies in it. Pure.

#include <cstddef>
#include <memory>
#include <vector>

#include "ddprun/comm_hook.h"
#include "ddprun/distributed_data_parallel.h"
#include "ddprun/types.h"

namespace ddprun::worker_sdk {

// What packing needs of a gradient array.
struct PackItem {
  DataType type = DataType::f32;
  std::size_t count = 0;  // Elements.
};

// PyTorch's compute_bucket_assignment_by_size: items are taken in order, each type fills buckets of
// its own, and a bucket is closed once it holds at least its limit. The n-th bucket of a type is
// held to limits[n], those past the end to the last limit. Returns positions in `items`; buckets
// are ordered by their first position, which is the order to launch them in if gradients arrive in
// the order of `items`.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<PackItem>& items,
                                                     const std::vector<std::size_t>& limits);

// assign_buckets() for items that arrive in another order: `order` holds each position of `items`
// once. Returns positions in `items`, buckets in the order of their first arrival.
std::vector<std::vector<std::size_t>> assign_buckets_in_order(
    const std::vector<PackItem>& items, const std::vector<std::size_t>& order,
    const std::vector<std::size_t>& limits);

// Gradients start on multiples of this, so that vector loads never straddle two of them...
inline constexpr std::size_t kGradientAlignment = 16;

// The inside of one bucket.
struct BucketLayout {
  std::vector<std::size_t> offsets;  // In bytes, one per item.
  std::size_t tail = 0;              // Offset of the tail, in bytes.
  std::size_t bytes = 0;             // Size of the whole buffer.
};

// ... and the size of the buffer is a multiple of world_size * kGradientAlignment, so that every
// rank can own an equal, aligned slice of it. `tail_bytes` are kept free after the last gradient,
// at BucketLayout::tail.
BucketLayout lay_out(const std::vector<PackItem>& items, int world_size,
                     std::size_t tail_bytes = 0);

// The memory of all buckets: the place of each gradient, and the tail that marks which parameters
// were used. Used by distributed_data_parallel.cc; the packing is in buckets.cc.

using BucketOrder = std::vector<std::vector<std::size_t>>;

// Gradients are expected last layer first, so buckets are filled and launched in that order until
// the first pass has shown another one.
BucketOrder expected_order(const std::vector<Parameter>& parameters, const DdpOptions& options);
BucketOrder order_of_arrival(const std::vector<Parameter>& parameters, const DdpOptions& options,
                             const std::vector<std::size_t>& arrival);

class BucketSet {
 public:
  // Collective: every rank allocates the same. With `tail`, the last bucket ends with one element
  // per parameter.
  BucketSet(ProcessGroup& group, const std::vector<Parameter>& parameters, BucketOrder order,
            bool tail);

  std::size_t size() const { return buckets_.size(); }
  const BucketOrder& order() const { return order_; }
  GradientBucket& bucket(std::size_t b) { return buckets_[b]; }
  const GradientBucket& bucket(std::size_t b) const { return buckets_[b]; }
  Buffer gradient(std::size_t parameter) const { return gradients_.at(parameter); }
  std::shared_ptr<void> memory(std::size_t parameter) const { return memory_[home_.at(parameter)]; }

  void zero(ProcessGroup& group);
  // Takes gradients and used() from buckets of the same parameters.
  void take_over(ProcessGroup& group, BucketSet& from);
  // Passes the values through the gradients' memory, so gradients are lost. Collective.
  void broadcast_values(ProcessGroup& group, const std::vector<Parameter>& parameters, int root);

  // After its collective, the average over ranks is above zero for a parameter that any rank used.
  // Does nothing without a tail.
  void write_tail(ProcessGroup& group, const std::vector<bool>& used);
  void tail_has_come();  // Its collective has ended. Does nothing unless one was written.
  // Whether any rank used the parameter in the last pass whose tail has arrived: while one is in
  // flight, another thread writes to it. Before the first: false. Without a tail: true.
  bool used(ProcessGroup& group, std::size_t parameter);

 private:
  void read_tail(ProcessGroup& group);
  void lay_out_bucket(ProcessGroup& group, const std::vector<Parameter>& parameters, bool tail);

  BucketOrder order_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::shared_ptr<void>> memory_;  // By bucket.
  std::vector<Buffer> gradients_;              // By parameter.
  std::vector<std::size_t> home_;              // The bucket of each parameter.
  std::vector<bool> used_;                     // By parameter, from the last tail read.
  bool in_flight_ = false;                     // From write_tail() to tail_has_come().
  bool unread_ = false;                        // The memory has what used_ has not yet.
};

}  // namespace ddprun::worker_sdk
