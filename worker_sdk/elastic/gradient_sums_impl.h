#pragma once
// What GradientSums is made of: gradient_sums.cc takes gradients in, reduces them and hands the
// sums out.
//
// If ranks can read each other's arrays (combine.h), the gradients of a rank's first shard are kept
// as they are. If no rank adds a second one, they become sums while they are read: then exact sums
// move as many bytes as plain ones. A second shard makes integers of both.

//
// The sums of a tensor that are left in the memory are contiguous, also over several buckets:
// pieces fill a bucket up to its end before the next one begins.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddprun/elastic/gradient_sums.h"
#include "worker_sdk/elastic/exact_sum.h"
#include "worker_sdk/elastic/sum_layout.h"

namespace ddprun {

struct GradientSums::Impl {
  enum class State { kNoGroup, kReady, kAdding, kReduced };

  Impl(std::vector<std::size_t> tensor_sizes, const GradientSumOptions& chosen);

  std::size_t element() const { return options.exact ? sizeof(std::int64_t) : sizeof(float); }
  // The first element of a bucket.
  std::int64_t* integers(std::size_t bucket) const {
    return static_cast<std::int64_t*>(memory.get()) + starts[bucket];
  }
  float* floats(std::size_t bucket) const {
    return static_cast<float*>(memory.get()) + starts[bucket];
  }
  // In the second half of the memory: integers made of them, in order, are written behind the
  // elements still to be read.
  float* kept(std::size_t bucket) const {
    return static_cast<float*>(memory.get()) + starts.back() + starts[bucket];
  }
  // The place for the gradients of the first shard if they are taken in unchanged, or null.
  float* first(const worker_sdk::SumPiece& piece) const {
    if (options.exact && !keeps) return nullptr;
    return (options.exact ? kept(piece.bucket) : floats(piece.bucket)) + piece.at;
  }
  // The place of the sums if the caller has no arrays for them. Made of integers, in order, they
  // too are written behind the elements still to be read.
  float* place(const worker_sdk::SumPiece& piece) const {
    return (combines ? kept(piece.bucket) : floats(piece.bucket)) + piece.at;
  }
  std::span<const worker_sdk::SumPiece> pieces_of(std::size_t bucket) const;
  // Null if the tensor has no elements.
  const worker_sdk::SumPiece* first_piece_of(std::size_t tensor) const;
  [[noreturn]] static void refuse(ErrorKind kind, const std::string& text) {
    throw Error(kind, {.operation = "GradientSums"}, text);
  }
  void require(bool condition, const char* text) const {
    if (!condition) refuse(ErrorKind::bad_argument, text);
  }
  void begin_again();
  void lay_out(bool keeping, std::size_t room_for_notes);
  void add_piece(const worker_sdk::SumPiece& piece, std::span<const float> gradient);
  void add_plain_piece(const worker_sdk::SumPiece& piece, std::span<const float> gradient);
  std::uint64_t hash_of(std::size_t tensor, std::span<const float> gradient,
                        std::uint64_t seed) const;
  std::uint64_t fingerprint(double divisor) const;
  void write_head(const Call& call);
  Result read_head(int ranks, const Call& call);
  void judge_tensors(Result& result);
  void reduce_bucket(ProcessGroup& group, std::size_t bucket);
  void reduce_bucket(ProcessGroup& group, std::size_t bucket, const Call& call);
  void expand_kept();
  std::span<float> part_of(const worker_sdk::SumPiece& piece,
                           std::span<const std::span<float>> gradients) const;
  void finish_piece(const worker_sdk::SumPiece& piece, std::span<float> part, const Call& call,
                    Result& result);
  void finish_exact_piece(const worker_sdk::SumPiece& piece, std::span<float> part,
                          const Call& call);
  void note_not_finite(Result& result, std::size_t tensor) const;

  const std::vector<std::size_t> sizes;
  const GradientSumOptions options;
  worker_sdk::SumLayout layout;
  std::size_t notes = 0;                      // So many are in the head.
  std::vector<int> committed, running, next;  // By tensor.
  std::vector<std::uint32_t> largest;         // Magnitudes of this rank's gradients, by tensor.
  std::vector<bool> finite;                   // By tensor, found by all ranks.
  std::vector<std::size_t> starts;            // By bucket, in elements of memory; then the end.
  std::shared_ptr<void> memory;
  State state = State::kNoGroup;
  std::int64_t shards = 0;  // On this rank.
  bool keeps = false;       // The gradients of a rank's first shard stay as they are for a while.
  bool combines = false;    // Also, no rank has more: they become sums while they are read.
  bool in_place = false;    // place() has the sums of the last reduce().
};

}  // namespace ddprun
