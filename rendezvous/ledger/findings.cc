#include "rendezvous/ledger/findings.h"

#include <algorithm>
#include <cmath>

#include "common/text/figures.h"

namespace ddprun::rendezvous {
namespace {

using Time = TimeParts::Time;

constexpr double kWorthSaying = 0.005;  // Of all time.

double ratio(Time part, Time whole) {
  return whole.count() > 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count())
                           : 0;
}

std::string incidents_text(const RunLedger& ledger, const std::vector<IncidentCost>& losses,
                           const LedgerTotals& totals) {
  if (losses.empty()) return "No worker failed, and no node was lost.";
  Time cost{0};
  for (const IncidentCost& loss : losses) cost += loss.cost;
  const auto most = std::ranges::max_element(losses, {}, &IncidentCost::cost);
  const Incident& worst = ledger.incidents()[static_cast<std::size_t>(most - losses.begin())];
  std::string text = number_of(static_cast<int>(losses.size()), "incident") + " cost " +
                     percent_text(ratio(cost, totals.in_run())) + " of all rank time";
  if (losses.size() > 1) text += "; the most: " + worst.who + " on " + worst.where;
  return text + ".";
}

// `stopped`: and nothing had failed, so that what is not saved was not undone by a failure.
std::string ribbon_text(const LedgerTotals& totals, bool stopped) {
  struct Cost {
    Time time;
    const char* what;
  };
  const Cost costs[] = {{totals.parts[TimePart::kLost], "lost work"},
                        {totals.parts[TimePart::kRestart], "restarts"},
                        {totals.parts[TimePart::kWaiting], "waiting for the last rank"},
                        {totals.parts[TimePart::kTransfer], "exposed transfer of gradients"},
                        {totals.parts[TimePart::kCheckpoint], "checkpoints"},
                        {totals.parts[TimePart::kStartup], "start-up"},
                        {totals.parts[TimePart::kRendezvous], "rendezvous"}};
  const Time unknown = totals.parts[TimePart::kUnknown];
  if (totals.parts.kept() == Time{0} && unknown * 2 > totals.in_run()) {
    return "The workers do not use ddprun's SDK: of their time nothing more is known.";
  }
  if (!totals.knows_goodput()) return "Goodput not known: no rank reported steps.";
  const Time lost = totals.parts[TimePart::kLost];
  if (stopped && ratio(lost, totals.in_run()) >= kWorthSaying) {
    return percent_text(ratio(lost, totals.in_run())) +
           " of the time was computed after the last checkpoint: if you stopped it on purpose, "
           "nothing is wrong.";
  }
  const Cost& most = *std::ranges::max_element(costs, {}, &Cost::time);
  const std::string kept = percent_text(totals.goodput()) + " of the time went into kept steps";
  if (ratio(most.time, totals.in_run()) < kWorthSaying) return kept + ".";
  return kept + "; the most else: " + most.what + ", " +
         percent_text(ratio(most.time, totals.in_run())) + ".";
}

// One rank that the others waited for: had it kept up, they would not have. Where the ranks take
// turns in being the last, no machine is to blame.
void add_late(Findings& found, const std::vector<RunLedger::Row>& rows,
              const LedgerTotals& totals) {
  const auto worst =
      std::ranges::max_element(rows, {}, [](const RunLedger::Row& row) { return row.times.late; });
  if (worst == rows.end() || worst->times.late_steps == 0) return;
  const bool turns = std::ranges::any_of(rows, [&](const RunLedger::Row& row) {
    return &row != &*worst && row.times.late * 2 > worst->times.late;
  });
  if (turns) return;
  const Time waited = worst->times.late * static_cast<std::int64_t>(rows.size() - 1);
  if (ratio(waited, totals.in_run()) < kWorthSaying) return;
  found.help.push_back({waited, "the others waited for rank " + std::to_string(worst->times.rank) +
                                    " on " + worst->host + " in " +
                                    grouped(static_cast<std::int64_t>(worst->times.late_steps)) +
                                    " steps: look at its machine"});
}

void add_repeated(Findings& found, const RunLedger& ledger,
                  const std::vector<IncidentCost>& losses) {
  const std::vector<Incident>& all = ledger.incidents();
  // A signal without evidence came from outside: that says nothing of the program.
  if (losses.size() < 2 || all[0].fault == "signal" || all[0].kind == "node_lost") return;
  Time repeated{0};
  for (std::size_t i = 1; i < losses.size(); ++i) {
    if (all[i].who != all[0].who || all[i].fault != all[0].fault) return;
    repeated += losses[i].cost;
  }
  if (repeated == Time{0}) return;
  found.help.push_back({repeated, all[0].who + " failed the same way each time: restarts do not "
                                               "cure it, so allow fewer of them"});
}

// The interval that costs least, by Young: the root of 2 * cost of a checkpoint * time between
// failures. Nobody reports the number of checkpoints, so what is lost says more than any rule.
void add_lost(Findings& found, const LedgerTotals& totals) {
  const Time lost = totals.parts[TimePart::kLost];
  if (ratio(lost, totals.in_run()) < kWorthSaying) return;
  const bool saves = totals.parts[TimePart::kCheckpoint] > Time{0};
  // Survivors have the state where rounds keep their workers: a checkpoint would save nothing.
  if (!saves && totals.changes > 0) return;
  found.help.push_back({saves ? lost / 2 : lost,
                        saves ? "checkpoints twice as often halve what a failure undoes"
                              : "no checkpoint was reported, so each failure undid all work: save "
                                "in the phase \"checkpoint\" (docs/ledger.md)"});
}

}  // namespace

Findings findings(const RunLedger& ledger, const std::vector<RunLedger::Row>& rows,
                  const std::vector<IncidentCost>& losses, TimePoint now, bool stopped) {
  const LedgerTotals totals = ledger.totals(now);
  Findings found{.incidents = incidents_text(ledger, losses, totals),
                 .ribbon = ribbon_text(totals, stopped && losses.empty()),
                 .help = {}};
  if (!stopped || !losses.empty()) add_lost(found, totals);
  add_late(found, rows, totals);
  add_repeated(found, ledger, losses);
  std::ranges::stable_sort(found.help, std::ranges::greater(), &Findings::Help::saving);
  return found;
}

}  // namespace ddprun::rendezvous
