#pragma once
// The runs that a journal's entries describe, one entry after the other. Pure. Used by the
// Coordinator, which brings the runs back, and by decode_journal(), which refuses what cannot be.

#include <map>
#include <string>

#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {

struct Replay {
  std::map<std::string, Run> runs = {};  // Also those that were forgotten since: blank ones.
  TimePoint now{};                       // Of the last entry, ...
  std::string clock = {};                // ... on this clock.

  // False, and nothing has changed, if the entry begins a run again that has not ended.
  bool take(const JournalEntry& entry);
  // All runs go on from `to` on another clock as they were at `now` on theirs.
  void rebase(TimePoint to);

 private:
  void reach(TimePoint when);
  bool read(const Record& record);
  bool read(const RunSnapshot& snapshot);
  bool read(const ClockChange& change);
};

}  // namespace ddprun::rendezvous
