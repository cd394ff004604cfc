#pragma once
// How a daemon remembers: every event that changed a run is a record, durable before its actions go
// out. A daemon that comes back feeds the records to fresh runs and has the old state; snapshots
// stand for all records of a run before them. Pure; where the records lie is a RecordLog's
// business.
//
// A record is one line: eight hexadecimal digits of CRC-32 (IEEE 802.3) over the rest, a space,
// JSON. The first line names the format of the others; a journal of format 1 has no such line.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

constexpr int kJournalFormat = 2;

// An event that changed a run.
struct Record {
  std::string run_id;
  TimePoint when{};  // On the clock that the last ClockChange named.
  RunEvent event;
};

// A run as it was at `when`; what was recorded of it before does not matter any more.
struct RunSnapshot {
  std::string run_id;
  TimePoint when{};
  Run run;
};

// From here on times are of another clock: each boot of a machine has its own.
struct ClockChange {
  std::string clock;
  TimePoint when{};  // The first moment on it.
};

using JournalEntry = std::variant<Record, RunSnapshot, ClockChange>;

std::string journal_header();
// Heartbeats cannot be recorded, and need not be.
std::string encode_record(const JournalEntry& entry);

struct Journal {
  std::vector<JournalEntry> entries;
  // What follows is torn or damaged, and must be cut off before appending.
  std::size_t bytes_good = 0;
  int format = 1;
  // Why it must not be touched, as a sentence: a newer daemon wrote it, or it cannot be.
  std::optional<std::string> refusal;
};

// Reads records until the end or the first one that is not whole.
Journal decode_journal(std::string_view bytes);

// The runs that a journal's entries describe, one entry after the other. Pure. Used by the
// Coordinator, which brings the runs back, and by decode_journal(), which refuses what cannot be.
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
