#pragma once
// Which parameters share a flat gradient buffer, and where in it each lies. Pure. Used by
// bucket_set.cc alone.

#include <cstddef>
#include <vector>

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

// One gradient array, as far as packing goes.
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

// The same for items that arrive in another order: `order` holds each position of `items` once.
// Returns positions in `items`, buckets in the order of their first arrival.
std::vector<std::vector<std::size_t>> assign_buckets_in_order(
    const std::vector<PackItem>& items, const std::vector<std::size_t>& order,
    const std::vector<std::size_t>& limits);

// Gradients start on multiples of this, so that vector loads never straddle two of them...
inline constexpr std::size_t kGradientAlignment = 16;

// The inside of one bucket.
struct BucketLayout {
  std::vector<std::size_t> offsets;  // In bytes, one for each item.
  std::size_t tail = 0;              // Offset of the tail, in bytes.
  std::size_t bytes = 0;             // Of the whole buffer.
};

// ... and the buffer is a multiple of world_size * kGradientAlignment, so that every rank can own
// an equal, aligned slice of it. `tail_bytes` are kept free after the last gradient, at
// BucketLayout::tail.
BucketLayout lay_out(const std::vector<PackItem>& items, int world_size,
                     std::size_t tail_bytes = 0);

}  // namespace ddprun::worker_sdk
