#pragma once
// The messages between agents and the rendezvous daemon, and their JSON form (docs/protocol.md).
// Pure.
//
// Every message is idempotent: after a broken link both sides report their state again, and
// receiving a message twice changes nothing. Only a SyncIncrease is added up; it decides nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/data_network.h"
#include "common/error.h"
#include "common/ledger/time_parts.h"
#include "common/sync_counts.h"
#include "common/time.h"
#include "common/worker_death.h"

namespace ddprun::rendezvous {

constexpr int kProtocolVersion = 1;

using NodeId = std::string;  // One life of one agent. An agent that restarts has a new one.

// What all nodes of a run must agree on. The first node to join sets it.
struct RunConfig {
  int nnodes_min = 1;
  int nnodes_max = 1;
  int max_restarts = 0;
  Milliseconds join_timeout{600'000};     // How long a round may gather before the run is given up.
  Milliseconds last_call{30'000};         // How long nnodes_min nodes wait for more.
  Milliseconds heartbeat_timeout{1'000};  // A node silent for longer is lost.
  // A node with an agent that is silent for longer is lost although its kernel answers.
  Milliseconds standstill_timeout{60'000};
  Milliseconds stop_timeout{40'000};  // A node that has not stopped its workers by then is lost.
  bool join_at_restart = false;  // New nodes wait until the round ends anyway; else they end it.
  int min_ranks = 0;             // No round has fewer; 0: any number.
  int audit_per_million = 0;     // Of the shards of elastic jobs: --audit.
  bool operator==(const RunConfig&) const = default;
};

// How often an agent beats, so that three beats may go missing before the node counts as lost.
constexpr int kBeatsInTimeout = 4;
constexpr Milliseconds beat_interval(Milliseconds heartbeat_timeout) {
  return heartbeat_timeout / kBeatsInTimeout;
}

// How many round trips the other end may be silent: enough for three retransmissions of TCP in a
// row, each after twice the time of the one before.
constexpr int kRoundTripsInSilence = 20;
// A timer that is so late shows that this process stood still, not that the other end is silent.
constexpr Milliseconds kTickLateMax{100};
constexpr std::size_t kNameBytesMax = 256;  // Of a run's id, or a node's.

// No node beats more often than this if there are `nodes`, so that all beats together cost the
// daemon less than a twentieth of a core: one beat takes it about 30 us (bench/RESULTS.md).
constexpr Milliseconds beat_interval_of(std::size_t nodes) {
  return Milliseconds(static_cast<std::int64_t>(nodes * 800 / 1000));
}

// What a node brings to a round.
struct NodeOffer {
  std::string host;     // For people.
  std::string address;  // Where the other nodes reach it.
  int store_port = 0;   // Where its store already listens, if it becomes group rank 0.
  int local_world_size = 1;
  std::string role = "default";
  int node_rank = -1;              // The group rank that its user gave it; -1: any.
  bool hosts_endpoint = false;     // It prefers group rank 0, and its launcher runs the daemon.
  bool store_at_endpoint = false;  // And what comes there for its store is handed over to it.
  // What the scheduler starts and may end together with this node, as "Slurm step 17.0"; empty: it
  // ends nothing else when this node has left.
  std::string scheduler_step{};
  // Where its memory server takes copies of other nodes' memory folders; absent: it has none.
  std::optional<int> memory_port{};
  // To choose one of for data; none: it has one, or its user has chosen.
  std::vector<NodeNetwork> networks{};
  std::string link_address{};  // Of its end of the link to the daemon, as the node itself sees it.
  // Where that link comes from, if that is another address: a router translates (NAT). Set by the
  // daemon.
  std::string seen_at{};
  RunConfig config;
};

// A node's memory server, as other nodes reach it.
struct MemoryPeer {
  NodeId node;
  std::string host;  // For people.
  std::string address;
  int port = 0;
  bool operator==(const MemoryPeer&) const = default;
};

// The copy of a lost node's memory folder. `from` has it under the first of the names `as` that it
// knows: the lost node, the one that this had replaced, and so on.
struct MemoryFill {
  MemoryPeer from;
  std::vector<NodeId> as;
  bool operator==(const MemoryFill&) const = default;
};

// Another node of a round, to which a node tries to connect as the round begins.
struct Neighbour {
  std::string host;  // For people.
  std::string address;
  int port = 0;           // Like those of its workers; perhaps nothing listens there any more.
  std::string seen_at{};  // As in NodeOffer.
  bool operator==(const Neighbour&) const = default;
};

// A node's place in a round.
struct Seat {
  int round = 0;
  int restart_count = 0;
  int group_rank = 0;
  int group_world_size = 1;
  int base_rank = 0;  // Global rank of its local rank 0.
  int world_size = 1;
  int role_base_rank = 0;
  int role_world_size = 1;
  int workers = 0;  // Of this node in this round; 0: as many as it offered.
  std::string master_address;
  int master_port = 0;
  NodeId master_node{};            // Of group rank 0.
  std::string master_host{};       // Its name, for people.
  bool store_at_endpoint = false;  // The store is reached at the endpoint's port, too.
  std::vector<std::string>
      members;  // Addresses of all nodes; for group rank 0 only, as its store admits them.
  std::vector<std::string> skip{};  // Pieces of steps that no rank may compute: "step 7, shard 3".
  LostWork lost_work{};             // In the round before.
  // The elastic job had the state of so many steps, and no worker of this round has it; 0: none is
  // lost.
  std::int64_t lost_steps = 0;
  // Of runs with memory folders: where this node's is copied to, and, of a node that replaces
  // another, what fills its folder before its workers start.
  std::optional<MemoryPeer> copy_to{};
  std::optional<MemoryFill> fill{};
  // Where this node's data goes, if not to the addresses of names; the sentence is for group rank
  // 0.
  std::optional<DataPlace> data{};
  std::string data_why{};
  bool data_warns = false;               // The sentence is a warning.
  std::optional<Neighbour> neighbour{};  // The next in the order of group ranks, if there are more.
  bool operator==(const Seat&) const = default;
};

// A fault travels as a word; an agent or a daemon that does not know it takes it for kUnknown.
const char* fault_name(Fault fault);         // "out_of_memory"
Fault fault_of_name(std::string_view name);  // kUnknown if there is none of that name.

// Why a run ended.
struct Verdict {
  enum class Kind {
    kSuccess,       // Every worker exited with 0.
    kWorkerFailed,  // A worker failed and no restart was left.
    kNodeLost,      // A node was lost and none took its place in time.
    kTimedOut,      // The nodes never came together.
    kInterrupted,   // A person or a scheduler stopped it.
    kAgentKilled,   // The agent was killed. Made by the launcher of that node; never sent.
  };
  Kind kind = Kind::kSuccess;
  int exit_code = 0;   // What every launcher of the run exits with.
  std::string text{};  // One paragraph for people.
  std::optional<WorkerDeath> first_cause{};
  std::vector<WorkerDeath> victims{};
  std::string advice{};  // What to try; a part of the text.
  // Of the rounds before, parts of the text too: "2 of 2 were used"; and whether they failed alike.
  std::string restarts{};
  std::string again{};
  // Where the run's time went. The daemon adds it as it sends the verdict.
  std::optional<LedgerTotals> ledger{};
  bool operator==(const Verdict&) const = default;
};

// From an agent. `Hello` is the first message on every link, and only the first. kName is what a
// message calls itself in its field "is".
struct Hello {
  static constexpr const char* kName = "hello";
  int version = kProtocolVersion;
  std::string run_id;
  NodeId node;
  std::string release{};  // Of its ddprun, as "0.1.0"; empty: from before this was sent.
  bool relays = false;    // It understands Relay.
};
struct Join {
  static constexpr const char* kName = "join";
  NodeOffer offer;
  int after_round =
      -1;  // The last round that this node knows of; it will never take part in it again.
  // The offered workers live already and can be seated as they are. None: it has left its round,
  // and the replacements are not ready yet.
  bool living = false;
  int serial =
      0;  // Counts Joins and Slots of an agent: of two the higher is newer. 0: not counted.
  int beginning = 0;            // More that live, and are not ready yet.
  bool prepares = false;        // It understands Prepare.
  int holders = -1;             // Living workers that have the job's state; -1: an older agent.
  std::int64_t kept_steps = 0;  // The most steps that a worker of this node had the state of.
  int min_ranks = 0;            // The job wants no round with fewer ranks; 0: any number will do.
};
// What the sync timers of a node's workers have counted since the node's last report.
struct SyncIncrease {
  SyncCounts sums{};  // Over workers.
  std::vector<LateRank> late{};
  bool operator==(const SyncIncrease&) const = default;
};
// Where the time of one place of a node went since the agent's ledger began: the newest holds.
struct PlaceTimes {
  int local_rank = 0;
  int rank = -1;  // The last that it had; -1: none yet.
  TimeParts parts{};
  TimePart at = TimePart::kRendezvous;  // What time passes as.
  TimeParts::Time at_risk{0};           // Of the kept parts: lost if the node is lost.
  std::uint64_t steps = 0;
  std::uint64_t late_steps = 0;  // In which the others waited for it.
  TimeParts::Time late{0};       // How long they did.
  std::uint64_t repeated = 0;    // Steps that ran again after a change of the membership.
  std::uint64_t steps_left = 0;  // That the program still expects; 0: unknown, or none.
  TimeParts::Time ran{0};        // Processor time of its present process, ...
  std::uint64_t resident = 0;    // ... and its memory in bytes; 0: not known.
  std::uint64_t shards = 0;      // Of its last step, in an elastic job; 0: not known.
  TimeParts::Time won{0};        // That shards have moved from slow ranks; counted by rank 0.
  std::string starts{};          // Of its processes: common/ledger/time_parts.h.
  std::string spans{};           // Of the run's picture: common/ledger/place_ledger.h; ...
  std::string bins{};            // ... and common/ledger/time_parts.h. With the last message only.
  bool operator==(const PlaceTimes&) const = default;
};
// Of a node's memory folder, and of its copy on another node.
struct MemoryUse {
  std::uint64_t used = 0;  // Bytes.
  std::uint64_t size = 0;  // As --memory-folder allows.
  // Since when its copy lacks something; 0: it lacks nothing; absent: there is no copy.
  std::optional<Milliseconds> behind{};
  bool relayed = false;  // The copy goes through the daemon: the nodes do not reach each other.
  bool operator==(const MemoryUse&) const = default;
};
struct NodeTimes {
  std::vector<PlaceTimes> places{};
  bool wants_account = false;         // The agent wants an Account before the verdict.
  std::string command{};              // What was typed to start the run; empty: unknown.
  std::optional<MemoryUse> memory{};  // If it has a memory folder.
  bool operator==(const NodeTimes&) const = default;
};
struct Heartbeat {
  static constexpr const char* kName = "heartbeat";
  int round = -1;  // The round of its seat; -1: none.
  std::optional<SyncIncrease> sync{};
  std::optional<NodeTimes> times{};
};
struct Finished {
  static constexpr const char* kName = "finished";
  int round = 0;
};  // All local workers exited with 0.
struct Failed {
  static constexpr const char* kName = "failed";
  int round = 0;
  WorkerDeath death;
  // When the agent noticed it, in microseconds of `clock` (common/system/own_process.h; empty: of
  // none). A busy machine may report a death later than another that it has caused.
  std::int64_t noticed = 0;
  std::string clock{};
  std::string unreachable{};  // What of the round this node does not reach, for people.
};
struct Stopped {
  static constexpr const char* kName = "stopped";
  int round = 0;
  std::vector<WorkerDeath> deaths;       // In the order of the exits.
  std::vector<WorkerDeath> successes{};  // Those that had exited with 0 before the others ended.
  std::string unreachable{};             // As in Failed.
};                                       // All local workers are gone.
struct Leave {
  static constexpr const char* kName = "leave";
  int signal = 0;
  std::string reason;  // Without the host, which the daemon puts before it.
  // Not at once, but like a drained node: at a boundary between steps if the workers stay.
  bool planned = false;
};
// How many of its workers can go on in another round as they are. Sent when that changes and on
// every new link, and only to a daemon that keeps workers.
struct Slots {
  static constexpr const char* kName = "slots";
  int serial = 0;     // As in Join.
  int round = -1;     // The round of its seat; -1: none.
  int kept = 0;       // Of the workers seated in it.
  int parked = 0;     // More, without a seat, for which there is a place in the round.
  int fallen = 0;     // Workers that have ended without a seat, since the agent began ...
  int respawned = 0;  // ... and how many replacements of those it was granted.
  int spares = 0;     // Ready for the seat of another.
  int min_ranks = 0;  // As in Join.
};
// The last message on a link that the agent closes because no answer comes on it: the node is not
// lost, but comes back on another link.
struct Away {
  static constexpr const char* kName = "away";
};
using AgentMessage =
    std::variant<Hello, Join, Heartbeat, Finished, Failed, Stopped, Leave, Away, Slots>;

// From the daemon.
struct Waiting {  // Nothing to do yet.
  static constexpr const char* kName = "waiting";
  Milliseconds left{
      0};  // Until the run is given up or the last call is over; 0: no end, as for a spare.
  std::string text{};  // What is waited for, as a sentence for people.
};
struct Assign {
  static constexpr const char* kName = "assign";
  Seat seat;
};
struct StopRound {
  static constexpr const char* kName = "stop_round";
  int round = 0;
  std::string reason;
  bool final = false;
  int lost_rank = -1;  // The rank that ended and so caused it; of a lost node the first. -1: none.
  int restart = 0;     // The number of the restart that follows; 0: none that is counted.
  int max_restarts = 0;
  bool keep = false;     // The workers stay, and leave the round: at once, ...
  bool planned = false;  // ... or at the next boundary between steps.
  // Those that failed had lost a peer, and it is not known why: a worker that has left its group
  // may be the cause, and is not stopped before it had time to end by itself.
  bool awaits_cause = false;
  std::int64_t lost_steps = 0;  // As in Seat, as far as that is known already.
  bool waits = false;  // Too few are left for a round: the workers that stay wait for others.
  bool operator==(const StopRound&) const = default;
};  // Then join again, unless final.
struct EndRun {
  static constexpr const char* kName = "end_run";
  Verdict verdict;
  bool operator==(const EndRun&) const = default;
};
struct Refuse {
  static constexpr const char* kName = "refuse";
  std::string reason;
};  // This node cannot be part of the run, and never will.
// This node's part has ended, and well: the run goes on without it. Its workers end, and so does
// the agent, unless others need what ends with its launcher. Then it stays, without workers, and
// each of its heartbeats is answered by this again, until neither holds any more.
struct Dismiss {
  static constexpr const char* kName = "dismiss";
  std::string reason;
  bool hosts = false;     // Others are in the run, and this node's launcher runs their daemon.
  bool for_step = false;  // Others of its scheduler_step are in the run.
  bool waits = false;     // The run has too few nodes or ranks without it, and waits for others.
};
struct Alive {
  static constexpr const char* kName = "alive";
  Milliseconds beat{250};
  bool replaceable = false;  // A spare waits that would take this node's place.
  bool keeps = false;        // This daemon can seat workers anew, and understands Slots.
  // The last message of a daemon if its launcher ends before the run: no daemon replaces it
  // elsewhere, so that none can decide to go on without this node.
  bool last = false;
  std::optional<std::string> release{};  // Of the daemon's ddprun; in the answer to a hello.
};  // Answers a hello and a heartbeat; the next one is due after `beat`.
struct Respawn {
  static constexpr const char* kName = "respawn";
  int granted = 0;  // As many of the node's fallen workers may be replaced, since its agent began.
  int restart_count = 0;
  int refused = 0;  // And as many may not: no restart is left.
};
// The workers of the running round stay: start this node's now, and join with them as they get
// ready.
struct Prepare {
  static constexpr const char* kName = "prepare";
  int restart_count = 0;
};
// Of an Account and of an Answer: well below the limits of a text and of a frame.
inline constexpr std::size_t kTextPieceBytes = std::size_t{32} << 10;
// A piece of the run's account, which is JSON (docs/ledger.md). Sent to agents that want it, before
// EndRun or in answer to Leave.
struct Account {
  static constexpr const char* kName = "account";
  std::string piece;
  bool more = false;  // Another follows.
};
// Another node, which cannot reach this one, wants a stream to one of its ports: the agent answers
// with Meet on a link of its own (rendezvous/protocol/wire_request.h).
struct Relay {
  static constexpr const char* kName = "relay";
  std::uint64_t stream = 0;
  int port = 0;
};
using DaemonMessage = std::variant<Waiting, Assign, StopRound, EndRun, Refuse, Dismiss, Alive,
                                   Respawn, Prepare, Account, Relay>;

std::string encode(const AgentMessage& message);
std::string encode(const DaemonMessage& message);

// "ddprun 0.1.0", for messages about one that the other side cannot read.
std::string release_text(std::string_view release);

// Anything but a well-formed message within limits is Errc::kBadMessage, with the name of the
// field.
Result<AgentMessage> decode_agent_message(std::string_view body);
Result<DaemonMessage> decode_daemon_message(std::string_view body);

// A few words for how a worker failed, for headlines: the verdict's picture, the report. Pure.

// "CUDA out of memory"; of a kind without words of its own "exited with 7", as how_it_ended().
std::string what_happened(const WorkerDeath& death);

}  // namespace ddprun::rendezvous
