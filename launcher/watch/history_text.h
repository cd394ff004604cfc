#pragma once
// The history of runs as text: a table, one run, JSON. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/history/run_record.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {

// The time, and the offset of local clocks from UTC.
struct LocalTime {
  std::int64_t now = 0;  // Seconds since 1970.
  std::int64_t ahead = 0;
};

// "today 08:12", "yesterday 09:30", "2026-11-20 21:04".
std::string when_text(std::int64_t then, const LocalTime& time);

// The position of the run for `word`: a run id, for which the newest run counts, or its number in
// the list.
std::optional<std::size_t> find_run(const std::vector<PastRun>& runs, std::string_view word);

// "2026-11-20T21:04:12Z".
std::string utc_text(std::int64_t then);

enum class KeptBy {
  kMachine,  // The records are this machine's, of this user.
  kDaemon,   // ... a daemon's.
};
std::string history_text(const std::vector<PastRun>& runs, const LocalTime& time,
                         const ScreenStyle& style, KeptBy keeper = KeptBy::kMachine);
std::string past_run_text(const PastRun& run, const LocalTime& time, const ScreenStyle& style,
                          KeptBy keeper = KeptBy::kMachine);
// A daemon's answer: {"runs": [...]}; all of them have ended.
Result<std::vector<PastRun>> decode_history(std::string_view text);
std::string history_json(const std::vector<PastRun>& runs);

// The last output of its workers, of one rank or of all (-1), as `ddprunctl logs` prints it.
std::string tails_text(const RunRecord& record, int rank, bool is_stderr);

}  // namespace ddprun::launcher
