#include "launcher/run/ledger_text.h"

#include <algorithm>
#include <array>
#include <vector>

#include "common/text/figures.h"
#include "common/text/screen.h"

namespace ddprun::launcher {
namespace {

struct Row {
  TimePart part;
  const char* meaning;
};

// In the order in which a report shows them.
constexpr Row kRows[] = {{TimePart::kForward, "of kept steps"},
                         {TimePart::kBackward, "of kept steps"},
                         {TimePart::kOutside, "of kept steps: optimizer, data"},
                         {TimePart::kTransfer, "of gradients, not hidden"},
                         {TimePart::kWaiting, "for the last rank"},
                         {TimePart::kSteps, "kept, not taken apart"},
                         {TimePart::kCheckpoint, "training stood still for it"},
                         {TimePart::kLost, "since the last checkpoint, then undone"},
                         {TimePart::kRestart, "from a failure or change to the next step"},
                         {TimePart::kStartup, "until the first step"},
                         {TimePart::kRendezvous, "until all nodes were there"},
                         {TimePart::kEnd, "after the last step, until the end"},
                         {TimePart::kUnknown, "the workers reported nothing"}};

// The rows with their first so many cells, apart as in a wide terminal or as near as they can be.
std::string rows_of(const LedgerTotals& ledger, std::size_t cells, bool near) {
  std::vector<std::array<std::string, 4>> rows;
  std::array<std::size_t, 4> rooms = {12, 8, 14, 0};
  if (near) rooms = {};
  for (const Row& row : kRows) {
    if (ledger.parts[row.part].count() == 0) continue;
    rows.push_back({label_of(row.part), percent_text(ledger.share(row.part)),
                    rank_time_text(ledger.parts[row.part]), row.meaning});
    for (std::size_t i = 0; i < 3; ++i) rooms[i] = std::max(rooms[i], rows.back()[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += "  " + row[0] + std::string(rooms[0] - row[0].size(), ' ');
    for (std::size_t i = 1; i < cells; ++i) {
      const std::size_t gap = i == 1 && !near ? 1 : 2;
      const std::size_t blanks = i == 3 ? 0 : rooms[i] - row[i].size();
      text += std::string(gap + blanks, ' ') + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string fitted_rows(const LedgerTotals& ledger, std::size_t width) {
  std::string text = rows_of(ledger, 4, false);
  if (fits_columns(text, width)) return text;
  for (std::size_t cells = 4; cells > 1; --cells) {
    text = rows_of(ledger, cells, true);
    if (fits_columns(text, width)) break;
  }
  return text;
}

}  // namespace

std::string ledger_text(const LedgerTotals& ledger, std::size_t width) {
  if (ledger.in_run().count() == 0) return "";
  const std::string goodput = ledger.knows_goodput()
                                  ? "goodput " + percent_text(ledger.goodput()) + " of "
                                  : "goodput not known: no rank reported steps; ";
  const std::string first = goodput + rank_time_text(ledger.in_run()) +
                            ", of all ranks, starts and restarts, in " + took_text(ledger.wall);
  std::string text;
  for (const std::string& line : wrapped_lines(first, width == 0 ? first.size() : width)) {
    text += line + "\n";
  }
  return text + fitted_rows(ledger, width);
}

}  // namespace ddprun::launcher
