#include "rendezvous/ledger/findings.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "common/ledger/place_ledger.h"
#include "common/text/figures.h"

namespace ddprun::rendezvous {
namespace {

using Time = TimeParts::Time;

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
  if (!totals.has_goodput()) return "Goodput not known: no rank reported steps.";
  const Time lost = totals.parts[TimePart::kLost];
  if (stopped && ratio(lost, totals.in_run()) >= kWorthReporting) {
    return percent_text(ratio(lost, totals.in_run())) +
           " of the time was computed after the last checkpoint: if you stopped it on purpose, "
           "nothing is wrong.";
  }
  const Cost& most = *std::ranges::max_element(costs, {}, &Cost::time);
  const std::string kept = percent_text(totals.goodput()) + " of the time went into kept steps";
  if (ratio(most.time, totals.in_run()) < kWorthReporting) return kept + ".";
  return kept + "; the most else: " + most.what + ", " +
         percent_text(ratio(most.time, totals.in_run())) + ".";
}

// One rank that the others waited for: if it had kept up, they would not have. If the ranks take
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
  if (ratio(waited, totals.in_run()) < kWorthReporting) return;
  found.help.push_back({waited, "the others waited for rank " + std::to_string(worst->times.rank) +
                                    " on " + worst->host + " in " +
                                    grouped(static_cast<std::int64_t>(worst->times.late_steps)) +
                                    " steps: look at its machine"});
}

void add_repeated(Findings& found, const RunLedger& ledger,
                  const std::vector<IncidentCost>& losses) {
  const std::vector<Incident>& all = ledger.incidents();
  // A signal without evidence came from outside and shows nothing about the program.
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
// failures. The number of checkpoints is not reported, so the measured loss is better than any
// rule.
void add_lost(Findings& found, const LedgerTotals& totals) {
  const Time lost = totals.parts[TimePart::kLost];
  if (ratio(lost, totals.in_run()) < kWorthReporting) return;
  const bool saves = totals.parts[TimePart::kCheckpoint] > Time{0};
  // If rounds keep their workers, survivors have the state: a checkpoint would save nothing.
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

namespace {

using Time = TimeParts::Time;
using namespace std::chrono_literals;

// An incident is noticed after its work was lost, and reported after it was noticed.
constexpr Time kNoticed = 2s;

}  // namespace

std::vector<DrawnRow> draw(const std::vector<RunLedger::Row>& rows, Time wall) {
  std::vector<DrawnRow> drawn;
  for (const RunLedger::Row& row : rows) {
    DrawnRow& here = drawn.emplace_back(DrawnRow{.row = &row});
    if (row.origin > Time{0}) here.spans.push_back({TimePart::kGone, Time{0}, row.origin});
    for (TimeSpan span : parse_time_spans(row.times.spans).value_or(std::vector<TimeSpan>())) {
      span.from = std::min(span.from + row.origin, wall);
      span.until = std::min(span.until + row.origin, wall);
      if (span.until > span.from) here.spans.push_back(span);
    }
    if (row.gone_at) here.spans.push_back({TimePart::kGone, *row.gone_at, wall});
  }
  return drawn;
}

std::vector<IncidentCost> losses(const std::vector<Incident>& incidents,
                                 const std::vector<DrawnRow>& rows, const RunLedger& ledger) {
  std::vector<IncidentCost> all(incidents.size());
  std::vector<Time> at;
  for (const Incident& incident : incidents) at.push_back(ledger.since_began(incident.at));
  for (const DrawnRow& row : rows) {
    for (const TimeSpan& span : row.spans) {
      const bool counts = span.part == TimePart::kLost || span.part == TimePart::kRestart;
      const Time known = span.part == TimePart::kLost ? span.until + kNoticed : span.until;
      const auto next = std::upper_bound(at.begin(), at.end(), known);
      if (!counts || next == at.begin()) continue;
      const auto i = static_cast<std::size_t>(next - at.begin()) - 1;
      const Time took = span.until - span.from;
      all[i].cost += took;
      if (span.part == TimePart::kLost) all[i].lost = std::max(all[i].lost, took);
      if (span.part == TimePart::kRestart) all[i].back = std::max(all[i].back, span.until - at[i]);
    }
  }
  return all;
}

void add_ranks(RunStatus& run, const RunLedger& ledger, TimePoint now) {
  std::map<NodeId, std::vector<RankStatus>> by_node;
  for (const RunLedger::Row& row : ledger.rows(now)) {
    if (row.gone_at) continue;
    const std::chrono::duration<double, std::milli> late = row.late_a_step;
    by_node[row.node].push_back({.rank = row.times.rank,
                                 .local_rank = row.times.local_rank,
                                 .at = name_of(row.times.at),
                                 .steps = row.times.steps,
                                 .steps_per_s = row.steps_per_s,
                                 .late_ms = late.count(),
                                 .cpu = row.cpu,
                                 .resident = row.times.resident,
                                 .shards = row.times.shards});
  }
  const std::map<NodeId, MemoryUse> memory = ledger.memory(now);
  for (NodeStatus& node : run.nodes) {
    const auto found = by_node.find(node.id);
    if (found != by_node.end()) node.ranks = std::move(found->second);
    const auto folder = memory.find(node.id);
    if (folder != memory.end()) node.memory = folder->second;
  }
}

void add_ledger(RunStatus& run, const RunLedger& ledger, TimePoint now) {
  if (ledger.empty()) return;
  run.ledger = ledger.totals(now);
  run.rounds = ledger.rounds(now);
  const auto progress = ledger.progress();
  if (!progress) return;
  run.step = progress->step;
  run.steps_per_s = progress->steps_per_s;
  run.steps_left = progress->steps_left;
  run.late = ledger.late();
}

}  // namespace ddprun::rendezvous
