#pragma once
// The page of memory through which a worker reports to its agent where it is, without a system call
// on either side: written by worker_sdk/worker/progress, read by agent/health/progress_files. It is
// the file named by DDPRUN_PROGRESS; a worker that only touches that file reports progress, too,
// without reporting where.
// In the other direction, the agent writes once which rank was lost, because some transports cannot
// detect it.
// What the sync timers of the worker count is there, too, for the daemon's metrics.
//
// One writer of each part. A reader that sees half of a change sees a worker that makes progress,
// which is true.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/sync_counts.h"

namespace ddprun {

struct ProgressPage {
  static constexpr auto kRelaxed = std::memory_order_relaxed;
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

  // Why the last operation of this process failed; taken back when the next one begins.
  enum Failure : std::uint64_t {
    kNone,
    kPeerLost,
    kTimedOut,
    kMismatch,
    kAborted,
    kOther,
    kWrongResult
  };
  static constexpr int kPeerShift = 8;  // Above a Failure: the rank of the job to blame, + 1.
  std::atomic<std::uint64_t> failure;

  // What all sync timers of this process have counted. Places that no row has yet are left free, so
  // that a new row moves nothing.
  template <class Counts>
  struct Tally {
    static constexpr std::size_t kPlaces = 32;
    static_assert(Counts::kSize <= kPlaces);
    std::atomic<std::uint64_t> values[kPlaces];

    void add(const Counts& more) {
      for (std::size_t i = 0; i < Counts::kSize; ++i) {
        if (more.values[i] == 0) continue;
        if (!Counts::kRows[i].is_rate()) values[i].fetch_add(more.values[i], kRelaxed);
        if (Counts::kRows[i].is_rate()) values[i].store(more.values[i], kRelaxed);
      }
    }
    Counts read() const {
      Counts counts;
      for (std::size_t i = 0; i < Counts::kSize; ++i) counts.values[i] = values[i].load(kRelaxed);
      return counts;
    }
  };
  Tally<SyncCounts> sync;
  Tally<LateCounts> late;

  // The piece of a step that this process computes, for people and to recognise it.
  static constexpr std::size_t kWorkMax = 512;
  enum Work : std::uint64_t { kNoWork, kWork, kWorkThatCanBeSkipped };
  std::atomic<std::uint64_t> working;  // Set after `work`.
  std::atomic<char> work[kWorkMax];

  std::atomic<std::uint32_t> bell;  // A futex, woken when the agent has written its notice.

  // Not 0: this process has ended its part in a group by itself, and in none since. Set before the
  // peers can notice.
  std::atomic<std::uint64_t> left;
  // The step number of the state that this process has as a rank of an elastic job.
  std::atomic<std::uint64_t> kept_steps;

  // The agent's word: how many bundles an operator has requested of this process (common/bundle.h).
  std::atomic<std::uint64_t> bundles;
  // Not 0: this process is a rank of a job that writes them.
  std::atomic<std::uint64_t> takes_requests;
};

static_assert(sizeof(ProgressPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace ddprun
