#pragma once
// What can happen to a Run, and what it has its caller do. Pure.

#include <string>
#include <variant>

#include "common/history/run_record.h"
#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// A run that has just ended, as its record is made of it. Pure.

// The clock on the wall is the shell's: it adds `record.started` and `record.verdict`.
struct EndedRun {
  RunRecord record;
  Verdict verdict;
};

struct Lost {
  std::string how;
  bool closed = false;  // Its connection was closed; else it fell silent. Not journaled.
};                      // The node is gone, with its workers: "closed its connection".
struct Begin {};        // The run id is used again: forget the run that has ended.
struct Recovered {};    // The daemon has restarted, and received nothing for a while.
struct Unseen {};       // The node's connection has ended unnoticed by the daemon.
struct Returned {};     // The node has found the daemon again.
struct Cancel {
  int signal = 0;
  std::string reason;
};  // An operator, or the daemon's own end.
struct StoodStill {
  Milliseconds how_long{0};
};  // The daemon stood still and received nothing: the time counts against no node.
struct Drain {
  std::string reason;
};  // An operator wants the run to go on without this node.

struct Resize {
  int nodes = 0;
  std::string reason;
};  // An operator wants no more nodes in a round than these.

struct RunEvent {
  NodeId node;  // Empty for what concerns no single node.
  std::variant<Join, Heartbeat, Finished, Failed, Stopped, Leave, Away, Slots, Unseen, Lost, Tick,
               Begin, Recovered, Returned, StoodStill, Cancel, Drain, Resize>
      what;
};

struct RunAction {
  NodeId node;  // The receiver.
  DaemonMessage message;
};

// When an agent noticed something: microseconds on a clock (common/system/own_process.h).
struct Moment {
  std::int64_t noticed = 0;
  std::string clock{};
};

// What happened to a node, and how often: one that comes and goes is one line.
struct Loss {
  std::string what;
  int times = 1;
};

// What a lost node had been counted and granted of its workers that ended without a seat. It may
// not have learned of the grant, and requests it again if it comes back.
struct LostGrant {
  NodeId node;
  int fallen = 0;
  int granted = 0;
};

// What a node's kernel shows of itself, whether or not its agent sends anything.
struct Reach {
  TimePoint answered{};        // When its last packet came.
  Milliseconds round_trip{0};  // The shortest of late.
};

// "a <- assign round=0 group_rank=0/2 ranks=0.. of 4 restarts=0": one line of a trace; tests
// compare these.
std::string to_string(const RunAction& action);

}  // namespace ddprun::rendezvous
