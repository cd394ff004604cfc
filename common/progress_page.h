#pragma once
// The page of memory through which a worker reports to its agent where it is, without a system call
// on either side: written by worker_sdk/worker/progress, read by agent/health/progress_files. It is
// the file named by DDPRUN_PROGRESS; a worker that only touches that file reports progress, too,
// without saying where.
// In the other direction, the agent writes once which rank was lost, because some transports cannot
// detect it.
// What the sync timers of the worker count is there, too, for the daemon's metrics.
//
// One writer of each part. A reader that sees half of a change sees a worker that makes progress,
// which is true.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddprun {

struct ProgressPage {
  static constexpr std::uint64_t kMagic = 0x31'65'67'61'50'72'64'64;  // "ddrPage1"
  static constexpr std::size_t kNameMax = 24;                         // With the closing zero.
  static constexpr std::size_t kOperations = 32;  // Slots below it are collectives, by OpKind; 0 is
                                                  // "between collectives".
  static constexpr std::size_t kSlots = 48;       // The others are phases that the program named.

  // What this worker has done so far of one kind.
  struct Slot {
    std::atomic<char> name[kNameMax];
    std::atomic<std::uint64_t> count;       // How often it was left again.
    std::atomic<std::uint64_t> longest_ns;  // The longest of these, but for the first few.
  };

  std::atomic<std::uint64_t> magic;   // Zero until there is a writer, and again when it has ended.
  std::atomic<std::uint64_t> beats;   // Changes whenever anything else does.
  std::atomic<std::uint64_t> slot;    // Where it is.
  std::atomic<std::uint64_t> number;  // Of the collective it is in, or was in last.
  Slot slots[kSlots];

  // The agent's word.
  static constexpr std::size_t kWhyMax = 512;
  std::atomic<std::uint64_t> lost;  // The rank + 1; 0: none. Set after `why`.
  std::atomic<char> why[kWhyMax];

  // Sums over the synchronised steps of all writers in this process; nothing is ever taken back.
  struct Sync {
    static constexpr std::size_t kPhases = 3;  // outside, forward, backward: StepPhase.
    std::atomic<std::uint64_t> steps;
    std::atomic<std::uint64_t> bytes;  // Of gradients.
    std::atomic<std::uint64_t> phase_ns[kPhases];
    std::atomic<std::uint64_t> exposed_ns, waited_ns, comm_ns;
    // Steps in which the others waited for this rank; how long, by the phase that it lost most in.
    std::atomic<std::uint64_t> late_steps;
    std::atomic<std::uint64_t> late_ns[kPhases];
    std::atomic<std::uint64_t> busbw;  // Of the last window, in bytes/s; by rank 0 only.
  };
  Sync sync;

  // Why the last operation of this process failed; taken back when the next one begins.
  enum Failure : std::uint64_t { kNone, kPeerLost, kTimedOut, kMismatch, kAborted, kOther };
  static constexpr int kPeerShift = 8;  // Above a Failure: the rank of the job to blame, + 1.
  std::atomic<std::uint64_t> failure;
};

static_assert(sizeof(ProgressPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace ddprun
