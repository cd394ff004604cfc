#pragma once
// Where things lie in the control segment of n ranks. Only shm_team.cc includes this.

#include <cstddef>

#include "worker_sdk/shm/shm_team.h"

namespace ddprun::worker_sdk {

// A rank's own cache lines.
struct alignas(128) ShmLine {
  SharedCounter entered;             // Barriers.
  std::atomic<std::int32_t> cpu;     // Where it ran when it entered the latest.
  std::atomic<std::uint32_t> state;  // See RankState in shm_team.cc.
};

// The CPUs that a rank may use, a bit each; none if it could not tell. Written once.
struct alignas(128) ShmCpus {
  std::atomic<std::uint64_t> words[16];
};

struct alignas(128) PostingSlot {
  Posting posting;
};

class ShmLayout {
 public:
  explicit constexpr ShmLayout(int ranks) : n_(static_cast<std::size_t>(ranks)) {}

  constexpr std::size_t line(int r) const { return at(r) * sizeof(ShmLine); }
  constexpr std::size_t cpus(int r) const { return n_ * sizeof(ShmLine) + at(r) * sizeof(ShmCpus); }
  constexpr std::size_t posting(unsigned parity, int r) const {
    return cpus(static_cast<int>(n_)) + (parity * n_ + at(r)) * sizeof(PostingSlot);
  }
  constexpr std::size_t mailbox(int from, int to) const {
    return posting(2, 0) + (at(from) * n_ + at(to)) * sizeof(Mailbox);
  }
  // From here on everything is bytes of arrays.
  constexpr std::size_t small(unsigned parity, int r) const {
    return page(posting(2, 0) + n_ * n_ * sizeof(Mailbox)) + (parity * n_ + at(r)) * kSmallBytes;
  }
  constexpr std::size_t staging(unsigned parity, int r) const {
    return small(2, 0) + (parity * n_ + at(r)) * kChunkBytes;
  }
  constexpr std::size_t result(unsigned parity) const {
    return staging(2, 0) + parity * kChunkBytes;
  }
  constexpr std::size_t parcel(int from, int to, unsigned parity) const {
    return result(2) + ((at(from) * n_ + at(to)) * 2 + parity) * kParcelBytes;
  }
  constexpr std::size_t total() const { return result(2) + n_ * n_ * 2 * kParcelBytes; }

 private:
  static constexpr std::size_t at(int r) { return static_cast<std::size_t>(r); }
  static constexpr std::size_t page(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::size_t n_;
};

}  // namespace ddprun::worker_sdk
