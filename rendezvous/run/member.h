#pragma once
// What a node is to a Run, which alone changes it. Pure.

#include <optional>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

//          sealed          every worker exited with 0
//   kReady ──────▶ kSeated ──────────────────────────▶ kFinished
//     ▲               │ the round ends                     │
//     │ Join          └──────────────▶ kStopping ◀─────────┘    A Join makes a node kReady from
//     └─────────────────────────────── │      ▲                 kSeated and kFinished, too: its
//               Stopped, in kClosing   ▼      │ excused         workers are gone without a word.
//                                      kStopped                 One without workers: kEmpty.
enum class Phase {
  kReady,     // Has joined and waits for a seat; while kRunning, a spare.
  kSeated,    // Its workers run.
  kFinished,  // Its workers all exited with 0.
  kStopping,  // Its workers are being stopped.
  kStopped,   // Its workers are gone, it waits for the verdict. kClosing only.
  kEmpty,     // It has no seat, and no worker that is ready for one yet.
};

// Its part in the run, as Run decides.
struct Member {
  NodeOffer offer;
  Phase phase = Phase::kReady;
  int arrival = 0;
  int group_rank_before = -1;
  int after_round = -1;      // Of its Join: the last round that it knew of.
  std::optional<Seat> seat;  // Of the present round, or of the one that is being stopped.
  TimePoint last_seen{};
  Milliseconds beat{0};  // The longest of its last two orders; it may still follow the older.
  Milliseconds heartbeat_acknowledged{0};
  int roster_notified = -1;  // The roster_ in the last message to this node.
  int unanswered = 0;    // Beats since the last answer.
  bool missing = false;  // It has no connection, and time to come back on another.
  // Since when the node's kernel owes an answer to what it was sent because the node was quiet.
  std::optional<TimePoint> asked;
  Milliseconds round_trip{0};
  bool living = false;    // The workers of its offer live, and are ready for a seat.
  int beginning = 0;      // More of them live, and are not ready.
  bool prepares = false;  // They do not live, and it starts them when it is ordered to ...
  bool invited = false;   // ... as it was.
  int holders = 0;        // Of its offer: have the state of the job.
  int kept = 0;           // kSeated: so many of them can be seated anew.
  int parked = 0;         // kSeated: and so many more.
  int spares = 0;         // kSeated: and these for the seats of those that end.
  int serial = 0;         // Of the newest Join or Slots.
  int fallen = 0;         // Of its workers without a seat; all of these are counted.
  int granted = 0;        // So many of those may be replaced.
  bool cannot_recover = false;  // kEmpty: and one of them may not.
};

}  // namespace ddprun::rendezvous
