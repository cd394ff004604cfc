#pragma once
// All runs of one daemon: which connection belongs to which node of which run. Pure: bodies of
// frames in, bodies out. Used by daemon/server behind sockets, by a standalone agent without any,
// and by the simulator.
//
// A link:                hello                        closed, hung up, or the node's next hello
//          ──▶ stranger ───────▶ peer: belongs to a node ──────────────────────────────────▶ gone
//                 │ a Command, or anything else                                               ▲
//                 ├────────── the answer, or why not; hung up ────────────────────────────────┤
//                 │ a Dial, or the Meet of the node that it names                             │
//                 └────────── joined: carries the bytes of the other link ────────────────────┘
//
// A run:   the first message of a node     all links are closed for kRemembered
//          ──▶ blank ──▶ goes on ──▶ ended ─────────────────────────────────▶ forgotten
//                └── its last link has closed ────────────────────────────────────▲

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/coordinator/counters.h"
#include "rendezvous/coordinator/past_runs.h"
#include "rendezvous/coordinator/relays.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/ledger/account.h"
#include "rendezvous/protocol/wire_request.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

struct Replay;  // rendezvous/journal/journal.h

struct Send {
  LinkId link;
  std::string body;
};
struct Hangup {
  LinkId link;
  std::string reason;
};  // After what was sent before. Without a reason it is the ordinary end of a link.
// The two links, after what was sent before, carry each other's bytes from now on. Neither closes
// for the Coordinator. `slot` is let go when the stream ends.
struct Bridge {
  LinkId dialer;
  LinkId agent;
  std::shared_ptr<void> slot;
};
using LinkAction = std::variant<Send, Hangup, Bridge>;

class Coordinator {
 public:
  // Each returns what to do, in order. What take_records() then holds must be on disk before that.
  // `from`: the address that the link comes from; empty: not known.
  [[nodiscard]] std::vector<LinkAction> on_message(LinkId link, std::string_view body,
                                                   TimePoint now, std::string_view from = {});
  // `unseen`: it may have closed earlier, unnoticed. Then its node may come back.
  [[nodiscard]] std::vector<LinkAction> on_closed(LinkId link, TimePoint now, bool unseen = false);
  [[nodiscard]] std::vector<LinkAction> on_tick(TimePoint now);
  // The daemon itself stood still and has just noticed: this time counts against no node, and what
  // closes soon after may have closed meanwhile.
  [[nodiscard]] std::vector<LinkAction> on_standstill(Milliseconds how_long, TimePoint now);
  // The links of nodes that are silent, and might be lost at the next tick. For each the caller
  // reports by on_reach() what is known of the kernel on the other side.
  std::vector<LinkId> quiet(TimePoint now) const;
  [[nodiscard]] std::vector<LinkAction> on_reach(LinkId link, const Reach& reach, TimePoint now);
  // The daemon ends for good though its runs do not: the agents must not fear that it decides
  // against them while they do not reach it.
  [[nodiscard]] std::vector<LinkAction> farewell() const;
  // The daemon itself has to end: every run is notified.
  [[nodiscard]] std::vector<LinkAction> on_shutdown(int signal, TimePoint now);

  std::optional<TimePoint> deadline() const;

  // The journal could not be written for a while, and no message was handled meanwhile: like a
  // restart.
  [[nodiscard]] std::vector<LinkAction> on_recovered(TimePoint now);

  // The records made since the last call, ready to be appended to the journal.
  std::string take_records();
  // Brings back what a former daemon knew. Only before the first event. `clock` names the clock of
  // `now`; on another one than the journal's, what was due in 5 s is due in 5 s.
  void replay(const Journal& journal, TimePoint now, const std::string& clock = "");
  // The same without the knowledge that time has passed since: all as it was at the last record.
  void load(const Journal& journal);
  // Records that stand for all made so far.
  std::string snapshot(TimePoint now) const;

  // True once there is nothing left to do: at least one run has ended, none goes on, and no link is
  // open.
  bool over() const;
  const std::map<std::string, Run>& runs() const { return runs_; }
  DaemonStatus status(TimePoint now) const;
  DaemonStatus watched(TimePoint now) const;  // The same, with ranks and events.
  const Counters& counters() const { return counters_; }
  const std::map<std::string, SyncTotals>& sync() const { return sync_; }       // By run id.
  const std::map<std::string, RunLedger>& ledgers() const { return ledgers_; }  // By run id.
  // The account of a run; nothing if there is no such run.
  std::optional<std::string> account(const std::string& run_id, TimePoint now) const;
  // What has happened in the runs lately, the oldest first.
  struct Happening {
    std::int64_t number = 0;  // Counts from 1.
    TimePoint at{};
    double run_s = 0;  // The same since the run's start.
    News news;
  };
  static constexpr std::size_t kHappeningsMax = 200;
  const std::deque<Happening>& happenings() const { return happenings_; }
  const Relays& relays() const { return relays_; }
  // What happened since the last call, for the log.
  std::vector<News> take_news() { return std::exchange(news_, {}); }

  // From now on agents of other runs are turned away without an answer: they search for theirs.
  void serve_only(std::string run_id) { only_run_ = std::move(run_id); }

  // Before the first of them: see Relays.
  void number_streams_from(std::uint64_t first) { relays_ = Relays(first); }

  // From now on ends of runs are kept, for take_ended(), and answers are given about them.
  void keep_past() { keeps_past_ = true; }
  std::vector<EndedRun> take_ended() { return std::exchange(ended_, {}); }
  void remember(RunRecord record) { past_.add(std::move(record)); }

  // Aborts unless every invariant holds, also those of the runs. Tests call it after each call.
  void check_invariants() const;

 private:
  struct Peer {
    std::string run_id;
    NodeId node;
    std::string release;  // As in Hello.
    bool relays = false;  // The same.
    std::string from;     // The address of its link's other end; empty: not known.
  };

  using Peers = std::unordered_map<LinkId, Peer>;
  using Links = std::unordered_map<NodeId, LinkId>;  // Of one run.

  void enter(TimePoint now);
  void hello(LinkId link, const Hello& hello, std::string_view from);
  void hang_up(const std::string& run_id, const NodeId& node, const std::string& reason);
  void lose(const std::string& run_id, const NodeId& node, const std::string& how);
  void forget_link(Peers::iterator it);
  void receive(const Peer& peer, AgentMessage message);
  void refuse_unreadable(const Peer& peer, LinkId link, const Failure& why);
  void step(const std::string& run_id, const RunEvent& event);
  void compare_waiting(const std::string& run_id);
  void schedule(const std::string& run_id, const Run& run);
  void restore(Replay last);
  bool has_links(const std::string& run_id) const;
  bool has_ended(const std::string& run_id) const;  // Or is not known, any more or yet.
  void note_idle(const std::string& run_id, const Run& run);
  void note_busy(const std::string& run_id);
  void forget_blank(const std::string& run_id);
  void forget_idle();
  void erase(const std::string& run_id);
  std::optional<TimePoint> forget_at() const;
  void refuse(LinkId link, Refusal refusal, const std::string& reason);
  void answer(LinkId link, const Command& command);
  void dial(LinkId link, const Dial& dial);
  void meet(LinkId link, const Meet& meet);
  void deny_relay(LinkId link, const std::string& why, bool again = false);
  Result<std::string> obey(const Command& command);
  void take_times(const Peer& peer, const Heartbeat& beat);
  void note_event(const std::string& run_id, const Run& run, const RunEvent& event);
  void note_change(const std::string& run_id, const Run& run, Run::State before);
  void add_ledger(RunStatus& status, TimePoint now) const;
  void note_news(std::size_t from);
  void note_end(const std::string& run_id, const Run& run, Run::State before);
  void add_ledger(const std::string& run_id, const Run& run, RunAction& action);
  AccountHead account_head(const std::string& run_id, const Run& run, TimePoint now) const;
  Result<std::string> drain(const Command& command);
  Result<std::string> cancel(const Command& command);
  Result<std::string> resize(const Command& command);
  Result<std::string> history(const Command& command) const;

  TimePoint now_{};
  TimePoint awake_since_ = TimePoint::min();  // When the daemon last noticed a standstill.
  std::string clock_;                         // The clock of now_; empty: not named.
  std::map<std::string, Run> runs_;
  std::unordered_map<std::string, TimePoint> idle_since_;  // Ended runs without links.
  std::set<std::pair<TimePoint, std::string>> idle_;       // The same, the oldest first.
  Peers peers_;
  std::unordered_map<std::string, Links> links_;     // By run id.
  std::set<std::pair<TimePoint, std::string>> due_;  // When which run wants a Tick.
  std::unordered_map<std::string, TimePoint> due_of_;
  std::set<std::string> waiting_;  // Runs that lack nodes for their first round.
  Relays relays_;
  std::vector<LinkAction> actions_;
  std::string records_;
  Counters counters_;
  std::map<std::string, SyncTotals> sync_;    // Of runs that are in runs_.
  std::map<std::string, RunLedger> ledgers_;  // The same.
  std::vector<News> news_;
  std::deque<Happening> happenings_;
  std::int64_t happenings_so_far_ = 0;
  std::string only_run_;  // Empty: all runs are served.
  bool keeps_past_ = false;
  std::vector<EndedRun> ended_;
  PastRuns past_;
};

}  // namespace ddprun::rendezvous
