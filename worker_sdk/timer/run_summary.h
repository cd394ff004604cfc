#pragma once
// What a rank leaves behind: for `ddprun --report` its wall time in parts that add up to all of it,
// which launcher/run/report.cc reads; and its last steps as a trace. Used by timer_shell.cc.

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "common/sync_counts.h"
#include "ddprun/process_group.h"
#include "ddprun/sync_report.h"
#include "worker_sdk/timer/sync_window.h"

namespace ddprun::worker_sdk {

struct RunSummary {
  std::chrono::nanoseconds startup{0};  // From the start of the process to its first step.
  std::chrono::nanoseconds rest{0};     // After the end of the last step.
  SyncReport steps;
  int window_steps = 0;        // Those in windows, for which the late rank is known.
  std::vector<LateRank> late;  // In the whole job, not only this rank.
};

std::string to_json(const RunSummary& summary, const Identity& identity, const std::string& host);

// Written aside and renamed, so that no reader sees a part. False: it could not be written.
bool write_whole(const std::string& path, const std::string& text);

// The last steps of a rank as a Chrome trace, which chrome://tracing and Perfetto show.
struct TraceRank {
  int rank = 0;
  std::string host;
  // Added to the steady clock: the wall clock's time, so that traces of several ranks of one host
  // (or of hosts that agree about the time) may be laid side by side.
  std::chrono::nanoseconds wall_clock{0};
};

std::string chrome_trace(const TraceRank& identity, const std::deque<StepTimes>& steps);

}  // namespace ddprun::worker_sdk
