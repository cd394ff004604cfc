#pragma once
// The ledger of a run: where the time of each of its places went, from the start of its first node
// (docs/ledger.md). Agents report sums of durations by their own clocks; when they arrive is the
// daemon's. So no two clocks are compared, and a report that is lost or comes twice changes
// nothing. Kept by the Coordinator beside the run: nothing of it decides anything. Pure.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/ledger/time_parts.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// What made a run lose time.
struct Incident {
  TimePoint at{};
  std::string kind{};  // "worker_failed", "node_lost".
  std::string fault{};
  std::string what{};  // "out of memory"; for people.
  std::string who{};   // "rank 27".
  std::string where{};
  std::string evidence{};
  std::string action{};  // What followed.
  NodeId node{};
  int local_rank = -1;  // -1: all of the node.
  int round = 0;
};

class RunLedger {
 public:
  static constexpr std::size_t kNodesMax = 4096;      // The first to be lost is forgotten first.
  static constexpr std::size_t kRoundsMax = 64;       // The last are kept.
  static constexpr std::size_t kIncidentsMax = 1000;  // The first are kept.

  // It may have been lost before.
  void joined(const NodeId& node, const std::string& host);
  void report(const NodeId& node, const NodeTimes& times, TimePoint now);
  // The node is gone. What its workers were computing is lost with it.
  void lost(const NodeId& node, TimePoint now);
  // Of a round the first failure of a worker counts, with the newest that is known of it. If a node
  // was lost, the workers that lost a peer are its victims.
  void happened(Incident incident);
  // All nodes are seated; `kept`: with workers of the round before.
  void round_began(int round, int world_size, bool kept, TimePoint now);
  std::string host_of(const NodeId& node) const;
  // The run has ended: no more time passes.
  void end(TimePoint now);

  bool empty() const { return !began_; }
  bool wants_account(const NodeId& node) const;
  const std::string& command() const { return command_; }  // As typed; empty: not reported.
  TimeParts::Time wall(TimePoint now) const;
  LedgerTotals totals(TimePoint now) const;

  // A place as the account shows it: its parts add up to wall().
  struct Row {
    NodeId node;
    std::string host;
    PlaceTimes times;
    TimeParts::Time origin{0};  // Of the times in its spans and bins, since the run began.
    std::optional<TimeParts::Time> gone_at{};  // When its node was lost, since the run began.
    double steps_per_s = 0;                    // Lately.
    TimeParts::Time late_a_step{0};            // The same: so long the others waited for it.
    double cpu = 0;                            // Lately: how many processors it occupied.
  };
  std::map<NodeId, MemoryUse> memory(TimePoint now) const;  // Of nodes that have memory folders.
  std::vector<Row> rows(TimePoint now) const;               // By rank, node and local rank.
  // The furthest of the places, and the fastest: in a run with ranks in step all of them.
  struct Progress {
    std::uint64_t step = 0;
    double steps_per_s = 0;        // Lately.
    std::uint64_t steps_left = 0;  // The most of a place; 0: not reported.
  };
  std::optional<Progress> progress() const;  // Nothing: no step was reported.
  // The ranks that the others wait for, without the phase, which the ledger does not have.
  std::vector<LateStatus> late() const;
  const std::vector<Incident>& incidents() const { return incidents_; }
  std::vector<RoundStatus> rounds(TimePoint now) const;
  TimeParts::Time since_began(TimePoint then) const;

 private:
  // How fast a place has been since `from`, or between the two times before.
  struct Pace {
    std::uint64_t steps = 0;    // By then.
    TimeParts::Time late{0};    // The same.
    std::uint64_t late_by = 0;  // The steps when `late` last grew, or could have.
    double steps_per_s = 0;
    TimeParts::Time late_a_step{0};
    TimeParts::Time ran{0};  // By then.
    double cpu = 0;
  };
  struct Node {
    std::string host;
    std::vector<PlaceTimes> places;
    std::vector<Pace> paces;  // Of the same places.
    TimePoint paced{};
    TimePoint reported{};
    TimePoint origin{};  // The latest time at which its ledger can have begun.
    std::optional<TimePoint> lost{};
    std::optional<MemoryUse> memory{};
    bool wants_account = false;
    int arrival = 0;
  };

  PlaceTimes place_at(const Node& node, const PlaceTimes& place, TimePoint now) const;
  static void pace(Node& node, TimePoint now);
  static void pace_late(Pace& pace, TimeParts::Time more);
  Node& node_of(const NodeId& id);
  void make_room();

  std::optional<TimePoint> began_;
  std::optional<TimePoint> ended_;
  std::map<NodeId, Node> nodes_;
  int arrivals_ = 0;
  int changes_ = 0;
  std::string command_;
  std::vector<Incident> incidents_;
  struct Round {
    int round = 0;
    int world_size = 0;
    TimePoint began{};
    std::string cause;
  };
  std::deque<Round> rounds_;  // The last kRoundsMax.
};

}  // namespace ddprun::rendezvous
