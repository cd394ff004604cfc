#pragma once
// One run, from the first node that joins to its verdict, as a pure state machine. It alone decides
// which nodes are in, which ranks they have, when workers stop and start again, and why the run
// ended.
//
//                 nnodes_min ready               last call over, or nnodes_max ready
//   kGathering ────────────────────▶ kLastCall ─────────────────────────────────────▶ kRunning
//     ▲   ▲  │       too few left        │                                            │ │ │
//     │   └──┼───────────────────────────┘          worker failed, restarts left;     │ │ │
//     └──────┼──────────────────────────────────────membership changes────────────────┘ │ │
//            │ join timeout, or a node leaves on purpose        no restart left ┌───────┘ │
//            ▼                                                                  ▼         │
//          kEnded ◀────────────── every node has stopped its workers ─────── kClosing     │
//            ▲                                                                            │
//            └───────────────────────── every worker exited with 0 ───────────────────────┘
//
// A worker that fails when a node is lost is a victim: its peer is gone. Its report may well come
// first, so until every node of the round has answered for itself, a node that is lost takes the
// blame: the restart is given back, and a run that was closing gathers again.
//
// Workers that can be seated anew stay when a round ends (run_members.cc): if every worker of every
// seated node has reported that it can, the nodes are ordered to keep them. A node joins again at
// once with those that are left; a node that has none left is kEmpty, and is not waited for.
// Workers that become ready later let the round grow, at a boundary between steps. One plain worker
// makes a round a plain one.
//
// After the first round the last call is not waited for: a round is sealed as soon as every node of
// the round before has come back or is lost. Membership changes use up no restart.
//
// Silence alone is not a loss. If an agent is silent for heartbeat_timeout, its node is lost if its
// kernel is silent too; if the kernel still answers, the agent stands still, and the node is kept
// for standstill_timeout. If round trips are long, the first limit is kRoundTripsInSilence of them.
// A node that has lost its connection without being lost is `missing` and has kReturnTime to come
// back, or standstill_timeout if it was the node that left (Away): its agent may stand still before
// it is back, and without a connection its kernel cannot be queried.
//
// Nothing here reads a clock, opens a socket or logs. The caller passes time in and carries actions
// out: rendezvous/coordinator for real, tests/sim for a simulated cluster. Equal events at equal
// times give equal actions, which is how rendezvous/journal brings a run back after the daemon's
// death.

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/history/run_record.h"
#include "common/time.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/memory_copies.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// What a node is to a Run, which alone changes it.
//
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
  int unanswered = 0;        // Beats since the last answer.
  bool missing = false;      // It has no connection, and time to come back on another.
  // Since when the node's kernel owes an answer to what it was sent because the node was quiet.
  std::optional<TimePoint> asked;
  Milliseconds round_trip{0};
  bool living = false;          // The workers of its offer live, and are ready for a seat.
  int beginning = 0;            // More of them live, and are not ready.
  bool prepares = false;        // They do not live, and it starts them when it is ordered to ...
  bool invited = false;         // ... as it was.
  int holders = 0;              // Of its offer: have the state of the job.
  int kept = 0;                 // kSeated: so many of them can be seated anew.
  int parked = 0;               // kSeated: and so many more.
  int spares = 0;               // kSeated: and these for the seats of those that end.
  int serial = 0;               // Of the newest Join or Slots.
  int fallen = 0;               // Of its workers without a seat; all of these are counted.
  int granted = 0;              // So many of those may be replaced.
  bool cannot_recover = false;  // kEmpty: and one of them may not.
};

// A run that has just ended, as its record is made of it. The clock on the wall is the shell's: it
// adds `record.started` and `record.verdict`.
struct EndedRun {
  RunRecord record;
  Verdict verdict;
};

// What can happen to a Run, and what it has its caller do.

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

constexpr int kParkedMax = 10'000;  // Workers of one node without a seat.

class Run {
 public:
  enum class State {
    kGathering,  // Fewer than nnodes_min nodes are ready, or nodes of the last round are on their
                 // way back.
    kLastCall,   // Enough are ready; the door stays open a little longer. First round only.
    kRunning,    // Membership is fixed and workers run.
    kClosing,    // The outcome is known; workers are being stopped.
    kEnded,      // Final. Each message is answered with the verdict.
  };

  // Whether nodes wait here for others, and no round has begun.
  bool lacks_nodes() const;
  // Whether the nodes of two such runs may want to meet: their run would have the same size.
  bool could_be(const Run& other) const;
  // "waits at the same daemon for 1 of 2 nodes"; and a hint to the nodes that wait here about
  // another such run. The hint decides nothing and is not journaled.
  std::string neighbour_text() const;
  void set_neighbour(std::string text);

  [[nodiscard]] std::vector<RunAction> step(const RunEvent& event, TimePoint now);

  // The nodes that have been silent for half the time that they have. The caller sends each of them
  // something, which its kernel acknowledges, and reports that by reached() at later calls.
  [[nodiscard]] std::vector<NodeId> quiet(TimePoint now) const;
  // Returns the node's limit of silence if that is higher now than what the configuration wants,
  // and was not before. Like a heartbeat it is not a step, and is not recorded.
  std::optional<Milliseconds> reached(const NodeId& node, const Reach& reach, TimePoint now);

  // The nodes that have been silent for too long at `now`, each with a description. The caller
  // reports them as Lost. It is not part of step() so that a replay without heartbeats loses no
  // node.
  struct Silent {
    NodeId node;
    std::string how;
  };
  [[nodiscard]] std::vector<Silent> silent(TimePoint now);

  // A node beats no more often than every `floor`, whatever its run was configured with: the daemon
  // serves other runs too. Not recorded, for nothing that is depends on it.
  void set_beat_floor(Milliseconds floor) { beat_floor_ = floor; }
  Milliseconds beat() const;  // How often its nodes are to beat.

  // When the next Tick is due; nothing if only another event can change this run.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  // The whole state as JSON, with points of time as distances from `at`; and back; `at` may be on
  // another clock: what was due in 5 s is due in 5 s. Equal events then give equal actions.
  std::string snapshot(TimePoint at) const;
  static Result<Run> restore(std::string_view snapshot, TimePoint at);

  // Nothing has happened yet, or nothing that matters any more.
  bool blank() const { return state_ == State::kGathering && !config_; }

  State state() const { return state_; }
  int round() const { return round_; }
  // Of the round that runs: it began with workers of the one before.
  bool has_kept() const { return round_ > 0 && keep_; }
  int restart_count() const { return restart_count_; }
  const std::optional<Verdict>& verdict() const { return verdict_; }
  bool has_node(const NodeId& node) const { return members_.contains(node); }
  bool has_dismissed(const NodeId& node) const { return dismissed_.contains(node); }
  // Whether the run, without this node, has too few for a round and waits for others; how long.
  bool waits_without(const NodeId& node) const;
  Milliseconds join_timeout() const { return config_ ? config_->join_timeout : Milliseconds(0); }
  // Whether the workers of this node alone have the state of an elastic job.
  bool is_last_holder(const NodeId& node) const;
  // Whether the node has sent nothing since the daemon came back: the caller reports Returned.
  bool misses(const NodeId& node) const;
  std::string describe() const;  // For traces and failed tests.
  // What has to happen next, which nodes are missing and how long that may take yet: a sentence for
  // people.
  std::string waiting_for(TimePoint now) const;
  std::size_t node_count() const { return members_.size(); }
  RunStatus status(TimePoint now) const;  // All but its run_id, which it does not know.

  // Aborts unless every invariant holds. Tests call it after each step.
  void check_invariants() const;

 private:
  using Members = std::map<NodeId, Member>;
  struct Snapshot;

  void on(const NodeId& node, const Join& join);
  void on(const NodeId& node, const Heartbeat& heartbeat);
  void on(const NodeId& node, const Finished& finished);
  void on(const NodeId& node, const Failed& failed);
  void on(const NodeId& node, const Stopped& stopped);
  void on(const NodeId& node, const Leave& leave);
  void on(const NodeId& node, const Away&);
  void on(const NodeId& node, const Slots& slots);
  void on(const NodeId& node, const Unseen&);
  void on(const NodeId& node, const Lost& lost);
  void on(const NodeId& node, const Tick&);
  void on(const NodeId& node, const Begin&);
  void on(const NodeId& node, const Recovered&);
  void on(const NodeId& node, const Returned&);
  void on(const NodeId& node, const StoodStill& still);
  void on(const NodeId& node, const Cancel& cancel);
  void on(const NodeId& node, const Drain& drain);
  void on(const NodeId& node, const Resize& resize);

  void advance();
  void advance_gathering();
  void advance_running();
  std::vector<Members::const_iterator> chosen() const;
  static std::vector<Members::iterator> in_order(const std::vector<Members::iterator>& nodes);
  void seal();
  void place_data(const std::vector<const NodeOffer*>& offers, std::vector<Seat>& seats) const;
  void place_copies(const std::vector<Members::iterator>& nodes, std::vector<Seat>& seats);
  void forget_last_round();
  LostWork work_of_failure() const;
  void check_members() const;
  void check_dismissed() const;
  void admit(const NodeId& node, const Join& join);
  void lose(Members::iterator it, const std::string& how);
  void lose_stuck();
  void forget();
  void note_loss(const std::string& what);
  std::string losses_text() const;
  void excuse_workers(const std::string& reason);
  void regather(const std::string& reason, int lost_rank = -1, bool planned = false);
  bool all_kept() const;
  bool has_beginners() const;
  bool keeps_workers() const;
  std::string why_not_kept() const;
  bool is_new(const Member& member) const { return member.group_rank_before < 0; }
  bool waits_for_seat(const Member& member) const;
  bool is_let_in(const Member& member) const;
  bool newcomers_wait() const;
  void invite_newcomers();
  Milliseconds patience_for_growth() const;
  void grow();
  std::string growth_text() const;
  void announce_change(const std::string& change);
  void take_out(const NodeId& node, const std::string& why, const std::string& change);
  void rejoin_dismissed(Members::iterator it, const Join& join);
  void hurry(const std::string& reason, int lost_rank);
  StopRound stop_of(const Member& member, const std::string& reason) const;
  void set_parked(Member& member, int parked);
  void replace_fallen(const NodeId& node, Member& member, const Slots& slots);
  void give_up_if_too_few(const std::string& host);
  void close(Verdict::Kind kind, int exit_code, const std::string& reason, int lost_rank = -1);
  void stop_seated(const std::string& reason, bool final, int lost_rank);
  void end();
  void report(const WorkerDeath& death);
  void report_failed(const Failed& failed);
  void report_success(const WorkerDeath& success);
  void report_unreachable(const std::string& what);
  void remember_failure();
  void report_cause(const NodeId& reporter);
  void note_kept(std::int64_t steps);
  int survivors() const;
  std::int64_t lost_steps() const;
  bool waits_for_others() const;
  int ready_ranks() const;
  bool is_enough() const;
  bool living_are_enough() const;
  // Whether it waits with workers that have the state of the job, of whichever round.
  static bool holds_state(const Member& member) { return member.living && member.holders != 0; }
  bool ends_for_ranks();
  std::string ranks_needed_text(int ranks) const;
  void close_for_ranks(int ranks);
  void raise_min_ranks(int ranks);
  void skip(const WorkerDeath& death);
  bool computes_wrong(const NodeId& node, const WorkerDeath& death) const;
  void exclude_wrong(const NodeId& node, const WorkerDeath& death);
  std::string successor_text(Member& member) const;
  void answer_stranger(const NodeId& node, int round);
  std::optional<std::string> objection(const NodeId& node, const Join& join) const;

  int count(Phase phase) const { return in_phase_[static_cast<std::size_t>(phase)]; }
  int size() const {
    return size_ > 0 ? size_ : config_->nnodes_max;
  }  // Nodes of a round, at most.
  int seated() const { return count(Phase::kSeated) + count(Phase::kFinished); }
  // Nodes that may take the place of another, now or as soon as their workers are ready.
  bool has_spares() const { return !ready_.empty() || count(Phase::kEmpty) > 0; }
  static bool may_become(Phase before, Phase after);
  void set_phase(Members::iterator it, Phase phase);
  void dismiss(Members::iterator it);
  Dismiss dismissal(const NodeId& node) const;
  Milliseconds patience(const Member& member) const;
  TimePoint check_at(const Member& member, TimePoint now) const;
  void expect_back(Member& member, Milliseconds within);
  // So many nodes that their beats were made rarer than the configuration wants.
  bool many() const { return beat() > beat_interval(config_->heartbeat_timeout); }
  void erase(Members::iterator it);
  void take_offer(Members::iterator it, const NodeOffer& offer);
  void free_node_rank(Members::iterator it);
  bool gathering() const { return state_ == State::kGathering || state_ == State::kLastCall; }
  void send(const NodeId& node, DaemonMessage message) {
    actions_.push_back({node, std::move(message)});
  }
  bool is_overruled_by(const NodeOffer& offer) const;
  void overrule(const NodeOffer& host);
  void refuse(const NodeId& node, const std::string& host, const std::string& why);
  void notify_waiting(const NodeId& node, Member& member);
  TimePoint wait_ends() const;
  std::string waiting_text(const Member* member = nullptr) const;
  std::string roster_text() const;
  std::string names_text(Phase phase) const;
  static const char* phase_name(Phase phase);
  std::optional<TimePoint> state_ends() const;

  std::optional<RunConfig> config_;  // Set by the first node.
  std::string config_from_;          // Its host, for messages.
  State state_ = State::kGathering;
  int round_ = 0;  // The present or the next round.
  int restart_count_ = 0;
  int size_ = 0;  // As an operator wants; 0: nnodes_max.
  int arrivals_ = 0;
  int roster_ = 0;  // Counts the changes of the set of nodes.
  TimePoint now_{};
  Members members_;
  std::array<int, 6> in_phase_{};            // How many members are in each Phase.
  std::set<NodeId> ready_;                   // Those in kReady.
  std::map<int, NodeId> node_ranks_;         // Group ranks that users gave to their nodes.
  std::map<NodeId, std::string> dismissed_;  // Drained, and why; some still have workers.
  NodeId daemon_host_;  // Dismissed, and its launcher runs the daemon; empty: no such node.
  std::map<NodeId, std::string> step_mates_;  // Dismissed, and their scheduler_step.
  Milliseconds beat_floor_{0};

  // Deadlines. Each is only checked in the states and phases that its comment names.
  TimePoint gather_ends_{};                 // kGathering, kLastCall: the run is given up.
  TimePoint last_call_ends_{};              // kLastCall.
  TimePoint stop_ends_{};                   // While any member is kStopping.
  std::optional<TimePoint> grow_at_;        // kRunning: when spares are let in.
  std::optional<TimePoint> silence_check_;  // When the first silent member may have to be lost.

  bool keep_ = false;     // kStopping: the nodes keep their workers, ...
  bool planned_ = false;  // ... and these leave at a boundary between steps.
  std::string change_;    // kRunning: why that was announced; empty: it was not.
  int parked_ = 0;        // The sum over members.
  int min_ranks_ = 0;     // No round has fewer, as nodes or their jobs want; 0: any number.
  // The most steps that a worker of an elastic job had the state of; 0: no worker keeps any.
  std::int64_t kept_steps_ = 0;

  bool workers_blamed_ = false;  // For the end of the last round, until the next is sealed.
  // Of the present round: the first to die, and the others in the order of the reports.
  std::vector<WorkerDeath> deaths_;
  Moment first_death_;                  // When the first of them was noticed.
  std::set<int> dead_ranks_;            // Theirs.
  std::vector<WorkerDeath> successes_;  // Of the present round, as far as reported.
  // What nodes have reported that they do not reach in it, for the verdict.
  std::vector<std::string> unreachable_;
  std::vector<WorkerDeath> past_;       // The first causes of the rounds that ended with a failure.
  std::vector<std::string> skip_;       // Pieces of steps that no rank may compute any more.
  std::vector<Loss> lost_;              // Of nodes, since the last sealed round.
  std::vector<LostGrant> lost_grants_;  // Of nodes that were lost and have not come back.
  MemoryCopies memory_copies_;          // Of the nodes' memory folders, as of the last seal().
  std::optional<Verdict> verdict_;      // From kClosing on.
  std::string neighbour_;               // The hint about another run that waits.
  std::vector<RunAction> actions_;
};

const char* name_of(Run::State state);  // "last call": for people.

}  // namespace ddprun::rendezvous
