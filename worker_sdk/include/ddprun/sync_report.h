#pragma once
// What the sync timer of DistributedDataParallel measures: how long gradients took, how much of
// that was hidden behind the backward pass, and who was late.
//
// One step of a rank is cut without gaps into four phases:
//
//   last step's end ──outside──► forward ──► backward ──► waiting for the gradients ──► end
//                   (optimizer, data)                     (exposed)
//
// `exposed` is what the step was longer by: the wait at the end, and what collectives took from the
// backward pass before it, where they share its CPUs (`contended`).
//
// Times are of the host's steady clock. No clocks of two ranks are compared: a collective ends
// nowhere before its last rank has come, so the rank whose collectives were shortest came last, and
// what another's took longer, it waited.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

/// Time that gradients took on this rank, in one synchronised step or (total()) in several.
struct SyncReport {
  int steps = 0;
  std::chrono::nanoseconds comm{0};     ///< Sum of the durations of the buckets' collectives.
  std::chrono::nanoseconds exposed{0};  ///< What the step was longer by because of them.
  /// Of `exposed`: the thread of the backward pass was ready to run, had no CPU, and collectives of
  /// this rank used one. 0 on nccl, and where the kernel does not count it.
  std::chrono::nanoseconds contended{0};
  std::size_t bytes = 0;  ///< Gradient bytes reduced.
  int buckets = 0;
  std::chrono::nanoseconds outside{0};  ///< Between steps. With forward, if that is not told.
  std::chrono::nanoseconds forward{0};  ///< From begin_forward() to begin_backward().
  /// From begin_backward() to finish_backward(), less `contended`.
  std::chrono::nanoseconds backward{0};
  /// Of `exposed`, spent until the last rank had come; known once the step's window is complete.
  std::chrono::nanoseconds waited{0};
  /// Of `exposed`, in steps whose window is not complete: how much of it was waited is not known.
  std::chrono::nanoseconds unknown{0};
  /// On nccl in a stream: steps whose times were not there yet when they were read, 8 steps later.
  /// They are in none of the sums.
  int dropped = 0;
  std::chrono::nanoseconds overlapped() const noexcept {
    return comm > exposed ? comm - exposed : std::chrono::nanoseconds{0};
  }
};

enum class StepPhase : std::uint8_t { outside, forward, backward };
const char* name_of(StepPhase phase) noexcept;

/// The rank that the others waited for longest, all steps of a window added up.
struct Straggler {
  int rank = -1;
  int steps = 0;  ///< In so many of the window's steps it came last, and the others waited.
  /// In each of these: the median of what the others waited, and of these steps the mean.
  std::chrono::nanoseconds late{0};
  StepPhase phase = StepPhase::outside;  ///< In which it lost the most against the others' median.
  std::int64_t step = 0;                 ///< The worst of them, ...
  std::chrono::nanoseconds worst{0};     ///< ... and what the others waited then.
};

/// Some consecutive synchronised steps of all ranks. Equal on all ranks.
struct SyncWindow {
  struct Rank {  // Means over the window's steps.
    std::chrono::nanoseconds outside{0}, forward{0}, backward{0}, exposed{0}, comm{0};
    std::chrono::nanoseconds waited{0};  ///< For the last rank, whether hidden or exposed.
    int blamed = 0;                      ///< Steps in which the others waited for this rank.
    /// How long they did, added up; by the StepPhase in which it lost the most.
    std::array<std::chrono::nanoseconds, 3> late{};
  };
  struct Bucket {
    std::size_t bytes = 0;
    std::chrono::nanoseconds transfer{0};  ///< Without waiting: least of the ranks' medians.
    double algbw = 0;                      ///< bytes / transfer, in 1e9 bytes/s.
    double busbw = 0;                      ///< algbw * 2 (n - 1) / n, as nccl-tests has it.
  };
  std::int64_t first_step = 0;
  int steps = 0;
  std::chrono::nanoseconds step{0}, comm{0}, exposed{0}, overlapped{0}, waited{0};  ///< Means.
  /// What gradients made a step longer: of each step the median `exposed` of the ranks that did not
  /// come last in it, of these the mean; and what of it was waiting until the last rank had come.
  std::chrono::nanoseconds lost{0}, lost_waiting{0};
  std::chrono::nanoseconds hidden{0};  ///< Of `waited`: behind the backward pass. It cost nothing.
  std::chrono::nanoseconds exposed_p50{0}, exposed_p95{0}, exposed_max{0};
  std::vector<Rank> ranks;
  std::vector<Bucket> buckets;
  std::optional<Straggler> straggler;  ///< None where nobody was late.
  int dropped = 0;                     ///< Steps that some rank knows no times of: not in `steps`.
};

/// "steps 32..63: 5.1 ms a step; gradients took 1.2 ms, 0.3 ms exposed ...": one line.
std::string to_string(const SyncWindow& window);
/// The same and more as one JSON object, without a line break. Durations in microseconds.
std::string to_json(const SyncWindow& window);

struct SyncTimerOptions {
  /// Steps after which the ranks exchange their times, in one small asynchronous all_reduce; at the
  /// beginning sooner, after 8, 16, 32 ... steps in all. 0: never, and nobody is called a
  /// straggler. Must be equal on all ranks.
  int window = 32;
  /// Rank 0 prints a line a window to standard error. Also by DDPRUN_SYNC_PRINT=1.
  bool print = false;
  /// Rank 0 appends a JSON line a window to this file. Also by DDPRUN_SYNC_JSON.
  std::string json_file = {};
  /// Every rank leaves a Chrome trace (for chrome://tracing or Perfetto) of its last 64 steps in
  /// this folder, at the end or when a collective fails. Also by DDPRUN_TRACE.
  std::string trace_folder = {};
};

}  // namespace ddprun
