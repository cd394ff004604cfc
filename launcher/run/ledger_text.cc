#include "launcher/run/ledger_text.h"

#include <cstdio>

#include "common/text/figures_text.h"

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
                         {TimePart::kLost, "since the last checkpoint before a failure"},
                         {TimePart::kRestart, "from a failure or change to the next step"},
                         {TimePart::kStartup, "until the first step"},
                         {TimePart::kRendezvous, "until all nodes were there"},
                         {TimePart::kUnknown, "the workers reported nothing"}};

}  // namespace

std::string ledger_text(const LedgerTotals& ledger) {
  if (ledger.in_run().count() == 0) return "";
  std::string text = "goodput " + percent_text(ledger.goodput()) + " of " +
                     rank_time_text(ledger.in_run()) + ", of all ranks, starts and restarts, in " +
                     took_text(ledger.wall) + "\n";
  for (const Row& row : kRows) {
    if (ledger.parts[row.part].count() == 0) continue;
    char line[128];
    std::snprintf(line, sizeof line, "  %-12s %8s  %14s  %s\n", label_of(row.part),
                  percent_text(ledger.share(row.part)).c_str(),
                  rank_time_text(ledger.parts[row.part]).c_str(), row.meaning);
    text += line;
  }
  return text;
}

}  // namespace ddprun::launcher
