#pragma once
// Where the sums of several tensors lie in buckets that are reduced one after the other. Pure. Used
// by gradient_sums.cc alone.

#include <cstddef>
#include <span>
#include <vector>

namespace ddprun::worker_sdk {

// A range of one tensor, which lies in one bucket. All counts are elements.
struct SumPiece {
  std::size_t tensor = 0;
  std::size_t from = 0;  // In the tensor.
  std::size_t count = 0;
  std::size_t bucket = 0;
  std::size_t at = 0;  // In the bucket.
};

struct SumLayout {
  std::vector<SumPiece> pieces;      // In the order of tensors, and so of buckets.
  std::vector<std::size_t> buckets;  // The size of each; at least one.
};

// Pieces begin at multiples of this.
inline constexpr std::size_t kSumAlignment = 16;

// `head` elements are kept free at the start of the first bucket, which has nothing else if it is
// to be `apart`. Buckets other than the first, if the head alone is larger, have at most `bucket`
// elements, at least kSumAlignment. Tensors are cut where a bucket is full.
SumLayout lay_out_sums(std::span<const std::size_t> sizes, std::size_t head, std::size_t bucket,
                       bool apart = false);

}  // namespace ddprun::worker_sdk
