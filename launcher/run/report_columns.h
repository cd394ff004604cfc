#pragma once
// The columns of the table of --report, no wider than the terminal: which of them give way, and
// what is said of them below. A number is never cut. Pure. Used by report_table.cc.

#include <string>
#include <vector>

namespace ddprun::launcher {

struct ReportColumn {
  std::string name{}, brief{};       // Its heading, and that for narrow terminals.
  std::vector<std::string> cells{};  // One a rank.
  std::size_t room = 0;              // That it has where there is enough.
  int yields = 0;                    // Columns are left out in this order, 1 first; 0: never.
  bool share = false;                // Per cent of the wall time.
};

// The rows with their heading, as wide as they like.
std::string wide_columns(const std::vector<ReportColumn>& columns);

// The rows in at most `width` columns, and sentences about what is not in them as in the wide ones.
// Until they fit, what they lose is, in this order: the room between columns, the last column (the
// hosts), columns that are 0.0 for all ranks, long headings, and whole columns by `yields`.
struct FittedColumns {
  std::string rows;
  std::vector<std::string> notes;
};
FittedColumns fitted_columns(const std::vector<ReportColumn>& columns, std::size_t width);

}  // namespace ddprun::launcher
