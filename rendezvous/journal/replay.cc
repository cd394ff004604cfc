#include "rendezvous/journal/replay.h"

#include "common/assert.h"

namespace ddprun::rendezvous {

bool Replay::take(const JournalEntry& entry) {
  return std::visit([&](const auto& what) { return read(what); }, entry);
}

void Replay::rebase(TimePoint to) {
  for (auto& [run_id, run] : runs) {
    Result<Run> moved = Run::restore(run.snapshot(now), to);
    DDPRUN_ASSERT(moved.has_value());
    run = std::move(*moved);
  }
  now = to;
}

// Only the clock of another boot, written down by a daemon that did not say so, runs backwards.
void Replay::reach(TimePoint when) {
  if (when < now) rebase(when);
  now = when;
}

bool Replay::read(const Record& record) {
  const bool begins = std::holds_alternative<Begin>(record.event.what);
  if (begins && runs[record.run_id].state() != Run::State::kEnded) return false;
  reach(record.when);
  (void)runs[record.run_id].step(record.event, now);
  return true;
}

bool Replay::read(const RunSnapshot& snapshot) {
  reach(snapshot.when);
  runs[snapshot.run_id] = snapshot.run;
  return true;
}

bool Replay::read(const ClockChange& change) {
  if (change.clock != clock) rebase(change.when);
  clock = change.clock;
  reach(change.when);
  return true;
}

}  // namespace ddprun::rendezvous
