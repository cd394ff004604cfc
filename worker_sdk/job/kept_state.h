#pragma once
// What a job keeps, and how one rank sends it to the ranks that lack it: as one stream of bytes, in
// pieces with checksums. Receivers stage all of it before any of it replaces what they have.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/process_group.h"

namespace ddprun::elastic {

// Points of a job at which a test may stop or end a worker. No program sets this.

using PointHook = void (*)(std::string_view point);
inline std::atomic<PointHook> on_point{nullptr};

inline void pass(std::string_view point) {
  if (const PointHook hook = on_point.load(std::memory_order_relaxed)) hook(point);
}

// The ranks with another number than the most frequent one. Of equally frequent numbers, that of
// rank 0 is right, else the smallest.
std::vector<int> odd_ranks(const std::vector<std::uint64_t>& by_rank);

class KeptState {
 public:
  struct Item {
    std::string name;
    Buffer array = {};  // Unless there are functions.
    std::function<std::string()> save = {};
    std::function<void(std::string_view)> load = {};
  };
  // The parts of a stream by item.
  using Staged = std::vector<std::vector<std::byte>>;

  // Throws Error(bad_argument).
  void add(Item item);

  // Equal on ranks that keep the same, and check it as often.
  std::uint64_t signature(std::int64_t check_every = 0) const;

  // Compares the arrays of all ranks, which have committed `steps`. Collective: throws
  // Error(mismatch) on all ranks, which names an array and the ranks that are fewer.
  void require_equal(ProcessGroup& group, std::int64_t steps) const;

  // Of all arrays.
  std::uint64_t hash(ProcessGroup& group) const;

  // Elements of arrays that are infinite or NaN, and the first array that has one.
  struct NotFinite {
    std::uint64_t elements = 0;
    std::string first = {};
  };
  NotFinite not_finite(ProcessGroup& group) const;
  // The first array that differs from `staged`; empty: none. Not what functions save: its bytes may
  // differ where it is equal.
  std::string difference(ProcessGroup& group, const Staged& staged) const;

  // What the functions return now, and the bytes of each item.
  struct Snapshot {
    std::vector<std::string> saved;
    std::vector<std::uint64_t> sizes;
  };
  Snapshot snapshot() const;
  // Passes on the bytes of all items, in their order, each in pieces.
  void write(ProcessGroup& group, const Snapshot& snapshot, std::size_t piece_bytes,
             const std::function<void(std::string_view)>& piece) const;
  const std::vector<Item>& items() const { return items_; }

  // The source's part of a transfer to all other ranks of the group; returns the bytes sent.
  std::uint64_t send(ProcessGroup& group) const;
  // The other ranks' part. Ranks that do not lack the state take part, as a broadcast includes all
  // ranks, and get nothing. Throws Error(corrupt) if a checksum is wrong.
  Staged receive(ProcessGroup& group, int source, bool lacks) const;
  void put(ProcessGroup& group, const Staged& staged);

  // This rank's share of a checkpoint, which refers to the state and to `lent`; what functions save
  // is the first rank's. The names begin with kInCheckpoint.
  std::vector<CheckpointPiece> pieces(ProcessGroup& group, const EvenShare& share,
                                      std::vector<std::string>& lent) const;
  // What the checkpoint has of it. Throws Error(corrupt), and Error(mismatch) if it is of a job
  // that keeps other state.
  Staged read(const Checkpoint& checkpoint) const;
  static constexpr std::string_view kInCheckpoint = "kept ";

 private:
  std::vector<Item> items_;
};

}  // namespace ddprun::elastic
