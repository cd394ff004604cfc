#pragma once
// `ddprun --report`: the table of each rank's wall time by parts. Pure. Its input are the summaries
// that workers with ddprun's SDK leave behind (worker_sdk/timer/run_summary.h). Used by report.cc.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/ledger/time_parts.h"

namespace ddprun::launcher {

// The time of all ranks of a run by parts, in a few lines for the end of --report. Pure. Used by
// report.cc.

// "goodput 56.8 % of 654 rank-s ...", and a line per part. Empty: nothing is known. No line is
// wider than `width`: the meanings of the parts are left out first, then their rank-s. 0: any
// width.
std::string ledger_text(const LedgerTotals& ledger, std::size_t width = 0);

// The columns of the table of --report, no wider than the terminal: which of them are left out, and
// the notes about them below. A number is never cut. Pure. Used by report_table.cc.
struct ReportColumn {
  std::string name{}, brief{};       // The heading, and the one for narrow terminals.
  std::vector<std::string> cells{};  // One per rank.
  std::size_t room = 0;              // Its width if there is enough space.
  int yields = 0;                    // Columns are left out in this order, 1 first; 0: never.
  bool share = false;                // Per cent of the wall time.
};

// The rows with their heading, as wide as they like.
std::string wide_columns(const std::vector<ReportColumn>& columns);

// The rows in at most `width` columns, and notes about what is missing in comparison with wide
// ones. Until they fit, they lose, in this order: the room between columns, the last column (the
// hosts), columns that are 0.0 for all ranks, long headings, and whole columns by `yields`.
struct FittedColumns {
  std::string rows;
  std::vector<std::string> notes;
};
FittedColumns fitted_columns(const std::vector<ReportColumn>& columns, std::size_t width);

struct RankTime {
  static constexpr std::array<const char*, 10> kParts = {
      "startup",  "outside", "forward", "backward",  "waiting",
      "transfer", "unknown", "data",    "optimizer", "rest"};
  static constexpr std::size_t kUnknown = 6, kData = 7, kOptimizer = 8;
  // A rank of the job that the others waited for.
  struct Late {
    int rank = 0;
    long long steps = 0;
    double seconds = 0;  // In all of these steps together.
    std::string phase;
  };
  int rank = 0;
  std::string host;
  int restart_count = 0;
  long long steps = 0;
  std::array<double, kParts.size()> seconds{};  // In the order of kParts.
  long long window_steps = 0;                   // Steps whose last rank this one knows, ...
  std::vector<Late> late;                       // ... and those ranks, worst first.
  double wall() const;
};

// std::nullopt: not a summary.
std::optional<RankTime> read_summary(const std::string& json);

// One row per rank, in per cent of its wall time, in tenths that add up to 100.0; then the meanings
// of the columns, and the late ranks. Without ranks: a sentence with the reason. No line is wider
// than `width`, unless a single number or word is; 0: any width.
std::string report_table(std::vector<RankTime> ranks, std::size_t width = 0);

// Numbers that add up to 1000, as close as possible to the shares; all 0 if there are none.
std::vector<int> per_mille(const std::vector<double>& parts);

}  // namespace ddprun::launcher
