#pragma once
// The last steps of a rank as a Chrome trace, which chrome://tracing and Perfetto show. Pure. Used
// by timer_shell.cc.

#include <deque>
#include <string>

#include "worker_sdk/timer/sync_window.h"

namespace ddprun::worker_sdk {

struct TraceRank {
  int rank = 0;
  std::string host;
  // Added to the steady clock: the wall clock's time, so that traces of several ranks of one host
  // (or of hosts that agree about the time) may be laid side by side.
  std::chrono::nanoseconds wall_clock{0};
};

std::string chrome_trace(const TraceRank& identity, const std::deque<StepTimes>& steps);

}  // namespace ddprun::worker_sdk
