#pragma once
// Where the sums of several tensors lie in buckets that are reduced one after the other. Pure. Used
// by gradient_sums.cc alone.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker_sdk/elastic/exact_sum.h"

namespace ddprun::worker_sdk {

// Values summed over all ranks ahead of their gradients: a few fields, the caller's notes, and for
// exact sums the tail of each tensor. Pure. Used by gradient_sums.cc alone.
struct SumFields {
  std::uint64_t note = 0, shards = 0, fingerprint = 0;
  std::uint64_t several = 0;  // Ranks that have more than one shard.
};

using Notes = std::span<const std::int64_t>;

// Elements, of 64 bits in exact sums, of 32 bits in plain ones.
std::size_t exact_head_size(std::size_t notes, std::size_t tensors) noexcept;
std::size_t plain_head_size(std::size_t notes) noexcept;

// `largest`: for each tensor what add_exact() returned, the largest over the shards of this rank.
void write_exact_head(std::int64_t* head, const SumFields& fields, Notes notes,
                      std::span<const std::uint32_t> largest) noexcept;
SumFields fields_of_exact(const std::int64_t* head) noexcept;
std::vector<std::int64_t> notes_of_exact(const std::int64_t* head, std::size_t notes);
ClassTail tail_of_tensor(const std::int64_t* head, std::size_t notes, std::size_t tensor) noexcept;

// Bytes of fields and notes travel one by one, as small numbers: f32 holds their sum over 65,793
// ranks.
void write_plain_head(float* head, const SumFields& fields, Notes notes) noexcept;
SumFields fields_of_plain(const float* head) noexcept;
std::vector<std::int64_t> notes_of_plain(const float* head, std::size_t notes);

// A range of one tensor, which lies in one bucket. All counts are elements.
struct SumPiece {
  std::size_t tensor = 0;
  std::size_t from = 0;  // In the tensor.
  std::size_t count = 0;
  std::size_t bucket = 0;
  std::size_t at = 0;  // In the bucket.
};

struct SumLayout {
  std::vector<SumPiece> pieces;      // Ordered by tensor, and so by bucket.
  std::vector<std::size_t> buckets;  // The size of each; at least one.
};

// Pieces begin at multiples of this.
inline constexpr std::size_t kSumAlignment = 16;

// `head` elements are kept free at the start of the first bucket, which has nothing else if the
// head is to be `apart`. Buckets, except a first one with a larger head, have at most `bucket`
// elements, at least kSumAlignment. Tensors are cut where a bucket is full.
SumLayout lay_out_sums(std::span<const std::size_t> sizes, std::size_t head, std::size_t bucket,
                       bool apart = false);

}  // namespace ddprun::worker_sdk
