#pragma once
// The file that the ranks of a fake communicator share: which ranks have come, the rank whose turn
// it is, and the bytes in between. Used by fake_nccl.cc.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace ddprun::test {

constexpr int kFakeRanks = 8;
constexpr std::size_t kFakeChunk = 262144;  // Bytes of one rank's array at a time.

// What must be equal on all ranks, or the real one would hang.
struct FakeSignature {
  int kind = 0, type = 0, op = 0, root = 0;
  std::uint64_t count = 0;
  bool operator==(const FakeSignature&) const = default;
};

// A message on the way from one rank to another, piece by piece.
struct FakePipe {
  std::atomic<std::uint32_t> full{0};
  std::uint64_t bytes = 0;  // Of the piece.
  char piece[kFakeChunk];
};

struct FakeWire {
  std::atomic<std::uint32_t> joined{0};
  std::atomic<std::uint32_t> connecting{0};  // Ranks that have called their first collective.
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint32_t> bell{0};  // Rung whenever something has changed.
  FakeSignature signatures[kFakeRanks];
  char chunks[kFakeRanks][kFakeChunk];
  FakePipe pipes[kFakeRanks][kFakeRanks];  // From, to.

  void ring() {
    bell.fetch_add(1);
    ::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  // Until something has changed since `seen`; or a little, for what changes elsewhere.
  void listen(std::uint32_t seen) {
    const timespec limit{0, 5000000};
    ::syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
};

}  // namespace ddprun::test
