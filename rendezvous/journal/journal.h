#pragma once
// How a daemon remembers: every event that changed a run is a record, durable before its actions go
// out. A daemon that comes back feeds the records to fresh runs and has the old state; snapshots
// stand for all records of a run before them. Pure; where the records lie is a RecordLog's
// business.
//
// A record is one line: eight hexadecimal digits of CRC-32 (IEEE 802.3) over the rest, a space,
// JSON. The first line names the format of the others; a journal of format 1 has no such line.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/error.h"
#include "common/time.h"
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

// Where a daemon's records lie: a file, or etcd. The Server appends to it and lets nothing out
// before the records made with it are durable. What a failure means is the log's own business: it
// tries again until the records are durable, or reports that this daemon may not decide any more.
class RecordLog {
 public:
  virtual ~RecordLog() = default;

  // `done` is called once they are durable, in the order of the calls, perhaps from inside this
  // call. Never, if this daemon may not decide any more.
  virtual void append(std::string records, std::function<void()> done) = 0;

  // `snapshot` stands for everything appended so far, and takes its place once it is durable; a
  // crash before that loses nothing. If it cannot be written, the log stays as it is.
  virtual void replace(std::string snapshot) = 0;
  virtual bool wants_snapshot() const = 0;

  // What keeps records from becoming durable just now, as a sentence.
  virtual std::optional<std::string> trouble() const = 0;

  // False once another daemon may have taken over. Called before each event.
  virtual bool may_decide(TimePoint /*now*/) const { return true; }

  // The last call: this daemon decides nothing any more. `done` once the next one may begin.
  virtual void leave(std::function<void()> done) { done(); }
};

}  // namespace ddprun::rendezvous
