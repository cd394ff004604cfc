#pragma once
// Shards on their way between the ranks of a group: a stream for each pair of ranks, all streams
// side by side, in pieces with checksums.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun::elastic {

// Pieces of memory as if they were one.
class ShardStream {
 public:
  void add(std::span<std::byte> part);
  std::uint64_t total() const { return total_; }
  // The bytes from `at` on, into or from `memory`.
  void read(std::uint64_t at, std::span<std::byte> memory) const;
  void write(std::uint64_t at, std::span<const std::byte> memory) const;

 private:
  template <class Visit>
  void visit(std::uint64_t at, std::size_t bytes, Visit visit) const;

  std::vector<std::span<std::byte>> parts_;
  std::uint64_t total_ = 0;
};

// Collective. `out` and `in`: by rank. `longest`: the total of the longest stream of any pair.
// Throws Error(corrupt) if a piece arrives damaged.
void carry(ProcessGroup& group, const std::vector<ShardStream>& out,
           const std::vector<ShardStream>& in, std::uint64_t longest);

}  // namespace ddprun::elastic
