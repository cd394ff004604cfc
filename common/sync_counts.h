#pragma once
// What sync timers count (docs/sync-timer.md): each counter is a row of a table, with its name, its
// unit, and what it is called in the daemon's /metrics. A worker's timer counts by these names; the
// page between worker and agent (progress_page.h) has a slot a row; the agent's SyncLedger, the
// heartbeat, the daemon's SyncTotals and /metrics loop over the rows.
// A new counter is a row here, and the line of worker_sdk/timer/sync_timer.cc that counts it. New
// rows stand at the end of their table: programs that are linked with an older SDK then still write
// into the right slots. Pure.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>

namespace ddprun {

// Of a rate, or of what is only so now, the newest is kept; all else is added up. 0 of these: there
// is none.
enum class SyncUnit { kNumber, kBytes, kNanoseconds, kBytesPerSecond, kLatest };

struct SyncCounter {
  const char* name;  // In the code; in a heartbeat, if it has a metric.
  SyncUnit unit;
  const char* metric = "";  // After "ddprun_sync_"; empty: not sent to the daemon.
  const char* help = "";
  const char* phase = "";  // The label by which the counters of one metric differ.

  constexpr bool is_exported() const { return *metric != '\0'; }
  constexpr bool is_rate() const {
    return unit == SyncUnit::kBytesPerSecond || unit == SyncUnit::kLatest;
  }
};

namespace sync_tables {

using enum SyncUnit;

constexpr const char* kTime = "Time of those steps, by phase.";
constexpr const char* kLateTime =
    "Time that the others waited for this rank, by the phase in which it lost most.";

// Of synchronised steps.
inline constexpr SyncCounter kSync[] = {
    {"steps", kNumber, "steps_total", "Synchronised steps, of all ranks."},
    {"bytes", kBytes, "bytes_total", "Gradient bytes reduced, of all ranks."},
    {"outside_ns", kNanoseconds, "seconds_total", kTime, "outside"},
    {"forward_ns", kNanoseconds, "seconds_total", kTime, "forward"},
    {"backward_ns", kNanoseconds, "seconds_total", kTime, "backward"},
    {"exposed_ns", kNanoseconds, "seconds_total", kTime, "exposed"},
    {"waited_ns", kNanoseconds, "waited_seconds_total",
     "Exposed time spent waiting for the last rank."},
    {"comm_ns", kNanoseconds, "comm_seconds_total", "Time of the buckets' collectives."},
    {"busbw", kBytesPerSecond, "busbw_bytes_per_second", "Bus bandwidth, last window."},
    {"contended_ns", kNanoseconds},  // Of exposed: collectives used the CPU of the backward pass.
    {"settled_ns", kNanoseconds},    // Of exposed: in steps for which the last rank is known.
    {"buckets", kNumber},
    {"dropped", kNumber},  // Steps without known times, which are in none of the others.
    // For the ledger (docs/ledger.md); no timer counts these.
    {"startup_ns", kNanoseconds},     // From the start of the process to its first step.
    {"steps_ns", kNanoseconds},       // Of steps that are not taken apart.
    {"checkpoint_ns", kNanoseconds},  // In which training stood still for checkpoints.
    {"saved_ns", kNanoseconds},       // From the first step to the newest state that is safe.
    // Parts of what is otherwise outside, if the program is known to be in them.
    {"data_ns", kNanoseconds, "seconds_total", kTime, "data"},
    {"optimizer_ns", kNanoseconds, "seconds_total", kTime, "optimizer"},
    {"expected", kNumber},         // Steps that the program plans, since it began; 0: unknown.
    {"commits", kNumber},          // Steps that are not taken apart: of an elastic job.
    {"stepped_ns", kNanoseconds},  // From the first step to the end of the last one.
    {"moved_shards", kNumber, "moved_shards_total",
     "Shards of elastic jobs that moved from slow ranks to faster ones."},
    {"audited_shards", kNumber, "audited_shards_total",
     "Shards of elastic jobs that a second rank has computed as well."},
    {"joining_ns", kNanoseconds},  // From the start of the process until it began to join a group.
    {"met_ns", kNanoseconds},      // The same, until it had met the others.
    {"shards", kLatest},           // Of each step of an elastic job, this rank's.
    {"won_ns", kNanoseconds, "moved_shards_won_seconds_total",
     "Time that steps of elastic jobs would have taken longer if no shard had moved, estimated."},
};

// Of steps in which the others waited for one rank.
inline constexpr SyncCounter kLate[] = {
    {"steps", kNumber, "late_steps_total", "Steps in which the others waited for this rank."},
    {"outside_ns", kNanoseconds, "late_seconds_total", kLateTime, "outside"},
    {"forward_ns", kNanoseconds, "late_seconds_total", kLateTime, "forward"},
    {"backward_ns", kNanoseconds, "late_seconds_total", kLateTime, "backward"},
    {"data_ns", kNanoseconds, "late_seconds_total", kLateTime, "data"},
    {"optimizer_ns", kNanoseconds, "late_seconds_total", kLateTime, "optimizer"},
};

}  // namespace sync_tables

// A value for each row of a table.
template <const auto& kTable>
struct Counts {
  static constexpr const auto& kRows = kTable;
  static constexpr std::size_t kSize = std::size(kTable);

  // The row of a name. A name that the table lacks does not compile.
  struct Row {
    consteval Row(const char* name) {
      while (std::string_view(name) != kTable[at].name) ++at;
    }
    std::size_t at = 0;
  };
  struct Entry {
    Row row;
    std::uint64_t value;
  };

  constexpr Counts() = default;
  constexpr Counts(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) values[entry.row.at] = entry.value;
  }
  bool operator==(const Counts&) const = default;

  constexpr std::uint64_t& operator[](Row row) { return values[row.at]; }
  constexpr std::uint64_t operator[](Row row) const { return values[row.at]; }

  // No count gets above `limit`.
  constexpr void add(const Counts& more, std::uint64_t limit = ~std::uint64_t{0}) {
    for (std::size_t i = 0; i < kSize; ++i) {
      if (more.values[i] == 0) continue;
      const std::uint64_t sum = kTable[i].is_rate() ? 0 : values[i];
      values[i] = sum + std::min(more.values[i], limit - std::min(sum, limit));
    }
  }
  // What was added to `before`. Honest sums only grow; of one that has not, nothing.
  constexpr Counts since(const Counts& before) const {
    Counts more = *this;
    for (std::size_t i = 0; i < kSize; ++i) {
      if (!kTable[i].is_rate()) more.values[i] -= std::min(values[i], before.values[i]);
    }
    return more;
  }

  std::array<std::uint64_t, kSize> values{};
};

using SyncCounts = Counts<sync_tables::kSync>;
using LateCounts = Counts<sync_tables::kLate>;

// All that the others waited, in whichever phase.
constexpr std::chrono::nanoseconds late_time(const LateCounts& counts) {
  std::uint64_t sum = 0;
  for (std::size_t i = LateCounts::Row("outside_ns").at; i < LateCounts::kSize; ++i) {
    sum += counts.values[i];
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(sum));
}

// A rank that the others waited for.
struct LateRank {
  int rank = 0;
  LateCounts counts{};
  bool operator==(const LateRank&) const = default;

  std::chrono::nanoseconds time() const { return late_time(counts); }
};

// Of one worker, since it began.
struct WorkerCounts {
  SyncCounts sums{};
  LateCounts late{};
  bool operator==(const WorkerCounts&) const = default;

  WorkerCounts since(const WorkerCounts& before) const {
    return {sums.since(before.sums), late.since(before.late)};
  }
};

// In which phase of its steps a rank kept the others waiting longest. Pure. Used by the summary of
// --report and by the daemon's status.
constexpr const char* worst_phase(const LateCounts& counts) {
  std::size_t most = LateCounts::Row("outside_ns").at;
  for (std::size_t i = most; i < LateCounts::kSize; ++i) {
    if (counts.values[i] > counts.values[most]) most = i;
  }
  return LateCounts::kRows[most].phase;
}

}  // namespace ddprun
