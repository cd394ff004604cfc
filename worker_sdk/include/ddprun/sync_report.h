#pragma once
// What the sync timer of DistributedDataParallel measures: how long gradient synchronisation took,
// how much of it the backward pass hid, and which rank was late.
//
// One step of a rank is cut without gaps into four phases:
//
//   last step's end ──outside──► forward ──► backward ──► waiting for the gradients ──► end
//                   (optimizer, data)                     (exposed)
//
// `exposed` is the time the step would have saved without communication: the wait at its end, and
// the CPU time that collectives took from the backward pass where both share CPUs (`contended`).
//
// Times are taken from the host's steady clock; clocks of two ranks are never compared. A
// collective ends on no rank before its last rank has arrived. So the rank with the shortest
// collectives arrived last, and every other rank waited for as long as its own took longer.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

/// Time that gradient synchronisation took on this rank, in one step or, for total(), in all steps.
struct SyncReport {
  int steps = 0;
  std::chrono::nanoseconds comm{0};     ///< Sum of the durations of the buckets' collectives.
  std::chrono::nanoseconds exposed{0};  ///< The time saved without communication.
  /// The part of `exposed` in which the thread of the backward pass was ready to run but had no CPU
  /// while this rank's collectives used one. 0 on nccl, and if the kernel does not report it.
  std::chrono::nanoseconds contended{0};
  std::size_t bytes = 0;  ///< Gradient bytes reduced.
  int buckets = 0;
  std::chrono::nanoseconds outside{0};  ///< Between steps; includes an unreported forward.
  std::chrono::nanoseconds forward{0};  ///< From begin_forward() to begin_backward().
  /// From begin_backward() to finish_backward(), less `contended`.
  std::chrono::nanoseconds backward{0};
  /// The part of `exposed` spent waiting for the last rank; known once the window is complete.
  std::chrono::nanoseconds waited{0};
  /// `exposed` of steps in no complete window, whose waiting part is therefore unknown.
  std::chrono::nanoseconds unknown{0};
  /// On nccl in a stream: steps whose times were not available when read, 8 steps later. No sum
  /// includes them.
  int dropped = 0;
  std::chrono::nanoseconds data{0}, optimizer{0};  ///< Not in `outside`: see StepPhase.
  std::chrono::nanoseconds overlapped() const noexcept {
    return comm > exposed ? comm - exposed : std::chrono::nanoseconds{0};
  }
};

/// `data` and `optimizer` are separated from `outside` if they are known, as in PyTorch programs
/// under `ddprun --report`.
enum class StepPhase : std::uint8_t { outside, forward, backward, data, optimizer };
const char* name_of(StepPhase phase) noexcept;

/// The rank for which the others waited longest, summed over the steps of a window.
struct Straggler {
  int rank = -1;
  int steps = 0;  ///< Steps of the window in which this rank came last and the others waited.
  /// Mean over these steps of the median time that the others waited.
  std::chrono::nanoseconds late{0};
  StepPhase phase = StepPhase::outside;  ///< In which it lost most against the others' median.
  std::int64_t step = 0;                 ///< The worst of these steps, ...
  std::chrono::nanoseconds worst{0};     ///< ... and how long the others waited in it.
};

/// Some consecutive synchronised steps of all ranks. Equal on all ranks.
struct SyncWindow {
  struct Rank {  // Means over the window's steps.
    std::chrono::nanoseconds outside{0}, forward{0}, backward{0}, exposed{0}, comm{0};
    std::chrono::nanoseconds waited{0};  ///< For the last rank, whether hidden or exposed.
    int blamed = 0;                      ///< Steps in which the others waited for this rank.
    /// The total time that they waited, by the StepPhase in which this rank lost most.
    std::array<std::chrono::nanoseconds, 5> late{};
    std::chrono::nanoseconds data{0}, optimizer{0};  ///< Not in `outside`: see StepPhase.
  };
  struct Bucket {
    std::size_t bytes = 0;
    std::chrono::nanoseconds transfer{0};  ///< Without waiting: minimum of the ranks' medians.
    double algbw = 0;                      ///< bytes / transfer, in 1e9 bytes/s.
    double busbw = 0;                      ///< algbw * 2 (n - 1) / n, as in nccl-tests.
  };
  std::int64_t first_step = 0;
  int steps = 0;
  std::chrono::nanoseconds step{0}, comm{0}, exposed{0}, overlapped{0}, waited{0};  ///< Means.
  /// The time by which gradient synchronisation made a step longer: the mean over steps of the
  /// median `exposed` of the ranks that did not come last; and its part spent waiting for the last.
  std::chrono::nanoseconds lost{0}, lost_waiting{0};
  std::chrono::nanoseconds hidden{0};  ///< The part of `waited` that backward hid: free.
  std::chrono::nanoseconds exposed_p50{0}, exposed_p95{0}, exposed_max{0};
  std::vector<Rank> ranks;
  std::vector<Bucket> buckets;
  std::optional<Straggler> straggler;  ///< Empty if no rank was late.
  int dropped = 0;                     ///< Steps without times of some rank; not in `steps`.
};

/// "steps 32..63: 5.1 ms a step; gradients took 1.2 ms, 0.3 ms exposed ...": one line.
std::string to_string(const SyncWindow& window);
/// The same and more as one JSON object, without a line break. Durations in microseconds.
std::string to_json(const SyncWindow& window);

struct SyncTimerOptions {
  /// The ranks exchange their times every `window` steps (at first after 8, 16, 32, ... steps in
  /// all) by one small asynchronous all_reduce. 0: never, and no straggler is reported. Must be
  /// equal on all ranks.
  int window = 32;
  /// Rank 0 prints one line per window to standard error. Also set by DDPRUN_SYNC_PRINT=1.
  bool print = false;
  /// Rank 0 appends one JSON line per window to this file. Also set by DDPRUN_SYNC_JSON.
  std::string json_file = {};
  /// Every rank writes a Chrome trace (for chrome://tracing or Perfetto) of its last 64 steps to
  /// this folder, at the end or when a collective fails. Also set by DDPRUN_TRACE.
  std::string trace_folder = {};
};

}  // namespace ddprun
