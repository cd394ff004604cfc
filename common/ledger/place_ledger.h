#pragma once
// Where the time of one place went, which is a local rank of a node: every moment since the ledger
// began is in exactly one TimePart. Pure. agent/ledger feeds it with what happens to the worker in
// the place and with what the worker's page counts.
//
//            start()                    end(): the process, or its round, has ended
//   idle(p) ─────────▶ worker computes ─────────────────────────────────────────────▶ idle(p)
//                          │  stop(): its end is ordered; from here on time is kRestart  ▲
//                          └──────────────────────────────────────────────────────────────┘

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/time_parts.h"
#include "common/time.h"

namespace ddprun {

// What a worker has reported since its process began.
struct WorkCounts {
  using Time = TimeParts::Time;

  Time startup{0};     // From the start of the process to that of the first step; 0: not known.
  TimeParts steps{};   // kOutside to kSteps of the steps that have ended.
  Time checkpoint{0};  // In which training stood still for checkpoints.
  Time saved{0};       // From the first step to the newest state that is safe.
  Time stepped{0};     // From the first step to the end of the last one; 0: not known.
  bool operator==(const WorkCounts&) const = default;

  bool steps_were_seen() const { return startup.count() > 0 || steps.sum().count() > 0; }
  WorkCounts since(const WorkCounts& before) const;
};

// A time in one part, for the picture of the run. From the ledger's beginning.
struct TimeSpan {
  TimePart part = TimePart::kUnknown;
  TimeParts::Time from{0};
  TimeParts::Time until{0};
  bool operator==(const TimeSpan&) const = default;
};

class PlaceLedger {
 public:
  static constexpr std::size_t kSpansMax = 256;  // Of a place; later ones are in the sums only.

  explicit PlaceLedger(TimePoint began, TimePart before = TimePart::kRendezvous);

  // No worker computes in this place.
  void idle(TimePart part, TimePoint now);
  // A process begins.
  void start(bool first_round, TimePoint now);
  // The same process begins another round. `before`: what it has counted in earlier ones.
  void start_again(const WorkCounts& before, TimePoint now);
  // It has committed its first step in that round; what it has counted by then.
  void resume(const WorkCounts& counts, TimePoint now);
  // The newest that the worker has reported.
  void see(const WorkCounts& counts) { seen_ = counts; }
  // The end of the worker's part in the round is ordered.
  void stop(TimePoint now);
  // Of what was kept since the last such call, and before the worker's present part, so much is
  // lost after all.
  void undo(double share);
  // It has come. `keeps`: what it has computed since its last checkpoint is not lost.
  void end(bool keeps, TimePart then, TimePoint now);

  bool computes() const { return working_.has_value(); }
  TimePart at(TimePoint now) const;                  // What time passes as.
  TimeParts parts(TimePoint now) const;              // Adds up to all time since the ledger began.
  TimeParts::Time at_risk(TimePoint now) const;      // Of parts(): lost if the node is lost now.
  std::vector<TimeSpan> spans(TimePoint now) const;  // Of all parts but kept steps.

 private:
  struct Working {
    TimePoint began;
    std::optional<TimePoint> stopped{};
    bool first_round = true;
    bool again = false;                  // Its process is that of an earlier round; ...
    std::optional<TimePoint> resumed{};  // ... since when it makes steps again.
    WorkCounts before{};
  };
  // What a worker's part in a round came to.
  struct Attempt {
    TimeParts parts{};
    TimeParts::Time unsaved{0};    // Kept parts since the last checkpoint.
    TimeParts::Time uncounted{0};  // Since the last step: of kOutside.
    TimeParts::Time tail{0};       // The same, if the worker reports when its last step ended.
  };

  TimeParts::Time since_began(TimePoint now) const;
  TimePoint computed_until(TimePoint now) const;
  Attempt attempt(TimePoint now) const;
  TimeParts::Time until_first_step(const WorkCounts& counts, TimePoint computed) const;
  bool sees_steps(const WorkCounts& counts) const;
  static void lose(Attempt& attempt);
  void close_idle(TimePoint now);
  void add_span(TimePart part, TimeParts::Time from, TimeParts::Time until);
  void add_attempt_spans(const Attempt& attempt, TimePoint now);

  TimePoint began_;
  TimeParts past_{};  // Of what is over.
  TimeParts safe_{};  // Of that: as it was after the last undo().
  TimePart idle_part_;
  TimePoint idle_since_;
  std::optional<Working> working_;
  WorkCounts seen_;
  std::vector<TimeSpan> spans_;
};

// Spans of time as text: "0,0,1200;10,52000,61000", which is part, begin and end in microseconds.
// Pure. Written by agent/ledger, read by rendezvous/ledger.
std::string to_text(const std::vector<TimeSpan>& spans);
// Nothing: that is not such a text, or has more than PlaceLedger::kSpansMax + 4 spans. A part of a
// newer ddprun is kUnknown.
std::optional<std::vector<TimeSpan>> parse_time_spans(std::string_view text);

}  // namespace ddprun
