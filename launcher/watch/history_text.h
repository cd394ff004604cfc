#pragma once
// The history of runs in words: a table, one run, JSON. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/history/run_record.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {

// Now, and by how much clocks differ from UTC here.
struct LocalTime {
  std::int64_t now = 0;  // Seconds since 1970.
  std::int64_t ahead = 0;
};

// "today 08:12", "yesterday 09:30", "2026-11-20 21:04".
std::string when_text(std::int64_t then, const LocalTime& time);

// The position of the run that `word` means: a run id, of which the newest run counts, or its
// number in the list.
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
// What a daemon answers: {"runs": [...]}, of which all have ended.
Result<std::vector<PastRun>> decode_history(std::string_view text);
std::string history_json(const std::vector<PastRun>& runs);

// What its workers wrote last, of one rank or of all (-1), as `ddprunctl logs` prints it.
std::string tails_text(const RunRecord& record, int rank, bool is_stderr);

}  // namespace ddprun::launcher
