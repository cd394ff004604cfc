#pragma once
// What one node's agent decides, as a pure state machine: when to join, when to start, stop and
// kill workers, what to report, and when and with which status to end. agent.cc carries the
// actions out.
//
//             Assign                  a worker failed, or StopRound
//   kJoining ────────▶ kRunning ──────────────────────────────────▶ kStopping
//     ▲                   │ every worker exited with 0   StopRound      │
//     │                   ▼                                 │           │ every worker is gone
//     │               kFinished ────────────────────────────┘           ▼
//     └───────────────────────────────────────────────────────────── kStopped
//                 StopRound, not for good                               │
//                                                                       │ EndRun, Refuse, a signal
//   any state ── the launcher died: kill everything ──▶ kDone ◀─────────┘
//
// If the workers can be seated anew (they have reported so, and the daemon supports it), they stay
// when a round ends: from kRunning the node goes to kLeaving instead. There the workers are fenced,
// or at a boundary between steps they leave by themselves, and once all have left and the daemon
// has sent how to go on, the node joins with those that live. In kJoining these are parked; so are
// replacements, which are started in empty places and become ready some time later, and all workers
// of a node that comes to such a round: the daemon has it prepare them before it gets a seat.
// Spares are parked while the others are seated, and take the seats of those that end. If none of
// its workers gets ready within `ready_limit`, a node leaves: nothing else would show that it
// waits. A single one that does not, beside others, is ended as one that failed to start.
//
// A node that has left the run may be needed all the same: its launcher runs the daemon of the
// others, or the scheduler ends them with it. Then it stays in kStopped, without workers, until the
// daemon reports that it is not needed any more. A pre-empted one does not stay beyond its own time
// for the daemon's sake: the others go on without a daemon.
//
// The daemon is needed to change who is in the run, never to compute: without a link nothing
// happens to running workers, unless the others may go on without this node. Then, after `fence`,
// its workers are killed, also those that are about to end, so that no two halves of a run write
// the same checkpoint, and it joins anew. On every new link the agent reports its state again.
// Pure.

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// What an agent does with a signal that it has received.
enum class SignalUse {
  kIgnore,
  kForward,   // To the workers.
  kEndsNode,  // The node ends: --signals-to-handle and --preempt-signal.
};

struct SignalRules {
  std::vector<int> ends_node;
  std::vector<int> preempts;  // Part of ends_node.
  int launcher = 0;           // Its process; 0: there is none.
};

// `sender`: its process, or 0; `parent`: of this process, now.
//
// A batch system may send SIGUSR1, SIGUSR2 and the signal that announces the end of its time to
// every process of a step. These are meant for the launcher, which passes them on.
//
// When the launcher dies, the kernel sends SIGHUP to agents that are stopped, and continues them.
// The workers do not get it: all of them are about to be killed together with what they have
// detached, which could not be attributed to a worker that has ended before (PosixProcessHost).
SignalUse use_of(int signal, int sender, int parent, const SignalRules& rules);

// The events that a Supervisor gets.

struct LinkUp {};
struct LinkDown {
  std::string why;
  bool answers = false;  // The daemon's machine answers, though no daemon does: none decides.
};
struct Received {
  rendezvous::DaemonMessage message;
};
// The daemon sends what this agent cannot read: it would do so on another connection, too.
struct CannotRead {
  std::string what;  // As a sentence, with what to do.
};
struct WorkerEnded {
  WorkerDeath death;
  bool output_follows = false;         // LastOutput will explain more; it comes soon.
  std::optional<TimePoint> noticed{};  // If before the event.
};
struct LastOutput {
  WorkerDeath death;
};  // The same, with all that shows why.
struct StartFailed {
  WorkerDeath death;
};  // This one never ran, nor those after it.
// A worker has reported that it can be seated without a new process (common/worker_link.h).
struct WorkerReady {
  int local_rank = 0;
  int min_ranks = 0;  // Its job computes in no round with fewer.
};
// It is in no operation of that round any more, and waits for its next seat.
struct WorkerLeft {
  int local_rank = 0;
  int round = 0;
  std::int64_t kept_steps = 0;  // Of the state that it has.
};
// It takes part in that round: with the state of those that were in it before, if it had none.
struct WorkerResumed {
  int local_rank = 0;
  int round = 0;
  std::int64_t kept_steps = 0;  // Of the state that it has.
};
// A worker that was ready before cannot be reached any more. It holds its seat as a plain worker.
struct WorkerPlain {
  int local_rank = 0;
};
struct Signalled {
  int signal = 0;
  std::string why{};  // As far as it is known, as a half sentence.
};
struct LauncherDied {};
using Event = std::variant<LinkUp, LinkDown, Received, CannotRead, WorkerEnded, LastOutput,
                           StartFailed, WorkerReady, WorkerLeft, WorkerResumed, WorkerPlain,
                           Signalled, LauncherDied, Tick>;

// What to do, in order.
struct SendJoin {
  int after_round = -1;
  int workers = 1;      // That it offers; ...
  bool living = false;  // ... living ones, which may be none yet. Else it will start them.
  int beginning = 0;    // More that live, and are not ready yet.
  int serial = 0;
  int holders = 0;              // Of `workers`: have the state of the job.
  std::int64_t kept_steps = 0;  // The most that a worker of this node had the state of.
  int min_ranks = 0;            // The job computes in no round with fewer.
};                              // Offer this node, and a store no round has used yet.
struct SendMessage {
  rendezvous::AgentMessage message;
};
struct StartWorkers {
  rendezvous::Seat seat;
};
struct SignalWorkers {
  // A leaver has ended its part in its group by itself, and so is about to end.
  enum class Targets { kAll, kAllButLeavers, kThoseLeavers };
  int signal = 0;
  int lost_rank = -1;    // The rank that ended and so caused it, or -1: workers are notified first.
  std::string why = {};  // What became of it.
  Targets targets = Targets::kAll;
};  // To the process group of each that lives.
// One more process, in a place that has none. It waits for its seat once it is ready.
struct SpawnWorker {
  int local_rank = 0;
  int restart_count = 0;
};
// Living workers, in the order of their ranks, which begin with the seat's base_rank.
struct SeatWorkers {
  rendezvous::Seat seat;
  std::vector<int> local_ranks;
};
// The round is over for all workers that hold a seat of it: at once.
struct FenceWorkers {
  int round = 0;
  int lost_rank = -1;
  std::string why = {};
};
// The same, at the next boundary between steps.
struct AnnounceChange {
  int round = 0;
  std::string why;
};
// SIGKILL, to these only.
struct KillWorkers {
  std::vector<int> local_ranks;
};
struct CleanUp {};         // All workers are gone: kill what they left behind, close the store.
struct AbandonWorkers {};  // SIGKILL does not end them: log which, and forget them.
struct LogLine {
  enum class Level { kInfo, kWarning, kError } level = Level::kInfo;
  std::string text;
  // For a person to read once: a death is also in what follows from it, the restart or the verdict.
  enum class About { kOther, kDeath, kRestart } about = About::kOther;
};
struct Exit {
  int status = 0;
  std::optional<rendezvous::Verdict> verdict;
};
using Action = std::variant<SendJoin, SendMessage, StartWorkers, SpawnWorker, SeatWorkers,
                            FenceWorkers, AnnounceChange, KillWorkers, SignalWorkers, CleanUp,
                            AbandonWorkers, LogLine, Exit>;

std::string to_string(const Action& action);  // One line of a trace; tests compare these.

struct SupervisorOptions {
  std::string host;
  int local_world_size = 1;
  std::string clock{};  // Of which its times are; empty: of none that others have.
  int spares = 0;       // Workers more, in places of their own, that wait for the seat of another.
  // From SIGTERM to SIGKILL. If a worker has left its group and others failed because of that, it
  // has the first half of this time to end by itself.
  Duration grace = std::chrono::seconds(30);
  Duration kill_limit = std::chrono::seconds(10);  // From SIGKILL to leaving them behind.
  Duration connect_limit =
      std::chrono::minutes(10);  // Without a link while not computing: give up.
  Duration report_limit =
      std::chrono::seconds(70);  // Without a link after the workers ended: give up.
  Duration leave_limit = std::chrono::seconds(2);  // The same for a node that was ordered to end.
  // A signal so long after the first one ends the grace: its sender does not want to wait. Sooner
  // it changes nothing: timeout(1), batch systems and service managers send theirs to every process
  // they know, so that one order arrives twice.
  Duration patience = std::chrono::seconds(15);
  Duration fence{0};          // Computing, and no answer from where the daemon was: kill the
                              // workers. 0: never.
  bool fence_always = false;  // Else only while the daemon has a spare for this node.
  // Signals that announce the end of this node's time: it leaves where it repeats nothing, and
  // ends with kExitPreempted, unless the run succeeds.
  std::vector<int> preempt_signals = {};
  // A worker that has not left a round so long after it was fenced is killed.
  Duration leave_round_limit = std::chrono::seconds(5);
  // A node leaves if none of its workers is ready for a seat so long after they began; one worker
  // that is not, beside others, is ended.
  Duration ready_limit = std::chrono::minutes(10);
};

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options, TimePoint now);

  [[nodiscard]] std::vector<Action> step(const Event& event, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  int round() const { return seat_ ? seat_->round : -1; }  // The round in heartbeats.
  bool running() const { return state_ == State::kRunning; }
  int living() const { return living_; }
  // While workers are being stopped: when those that are left are killed.
  std::optional<TimePoint> grace_ends() const { return kill_at_; }
  int signalled() const { return signal_; }  // The first signal that ordered us to end; 0: none.
  std::string describe() const;

  void check_invariants() const;

 private:
  enum class State { kJoining, kRunning, kLeaving, kFinished, kStopping, kStopped, kDone };

  // The place of a local rank, and the process in it.
  struct Slot {
    bool alive = false;
    bool ready = false;     // Can be seated anew.
    bool plain = false;     // Could, and cannot any more.
    bool seated = false;    // Holds a rank of the present round, or did when it ended.
    bool served = false;    // Held one of a round before: it may have what others need.
    bool resumed = false;   // Takes part in the present round.
    bool worked = false;    // Took part in one before.
    bool left = false;      // Is in no operation of that round any more.
    bool killed = false;    // Has not left it in time: it is in the round until it is dead.
    bool done = false;      // Has exited with 0; not replaced while others live.
    bool fallen = false;    // Ended without a seat, and waits for leave to be replaced.
    bool given_up = false;  // fallen: and may not be replaced, which has been logged.
    bool late = false;      // Was not ready in time: we end it, and it gets no seat any more.
    bool holds() const { return worked || resumed; }  // The state of the job.
    std::optional<TimePoint> ready_ends{};  // It began, and is not ready: when it is late.
  };
  // What was sent to the daemon about them.
  struct Announced {
    int round = -1, kept = 0, parked = 0, fallen = 0, spares = 0, min_ranks = 0;
    bool operator==(const Announced&) const = default;
  };

  void on(const LinkUp&);
  void on(const LinkDown& down);
  void on(const Received& received);
  void on(const WorkerEnded& ended);
  void on(const LastOutput& words);
  void on(const StartFailed& failed);
  void on(const WorkerReady& ready);
  void on(const WorkerLeft& left);
  void on(const WorkerResumed& resumed);
  void on(const WorkerPlain& plain);
  void on(const Signalled& signalled);
  void on(const CannotRead& message);
  void on(const LauncherDied&);
  void on(const Tick&);

  void receive(const rendezvous::Waiting&) {}  // The shell shows it.
  void receive(const rendezvous::Account&) {}  // The shell keeps it.
  void receive(const rendezvous::Relay&) {}    // The shell obeys it.
  void receive(const rendezvous::Assign& assign);
  void receive(const rendezvous::StopRound& stop);
  void receive(const rendezvous::EndRun& end);
  void receive(const rendezvous::Refuse& refuse);
  void receive(const rendezvous::Dismiss& dismiss);
  void receive(const rendezvous::Alive& alive);
  void receive(const rendezvous::Respawn& respawn);
  void receive(const rendezvous::Prepare& prepare);

  // The failure that ended the round on this node; null: none.
  const WorkerDeath* failure() const { return failed_ ? &deaths_.front() : nullptr; }
  void fail(WorkerDeath death, TimePoint noticed);
  void send_failed();
  void announce(const WorkerDeath& death);
  void announce_fallen(const WorkerDeath& death);
  void end_change();
  bool is_preemption(int signal) const;
  bool request_leave(int signal);
  void report_preempted();
  std::string preemption_text() const;
  void leave_at_once(int signal, const std::string& text);
  TimePoint preemption_ends() const;
  void stay(const rendezvous::Dismiss& dismiss, int status);
  bool stay_no_longer();
  Duration report_limit() const { return deserted_ ? options_.leave_limit : options_.report_limit; }
  bool may_be_in_round() const {
    return state_ == State::kRunning || state_ == State::kLeaving || state_ == State::kStopping;
  }
  void arm_fence();
  void cut_off();
  bool all_accounted_for() const { return living_ == 0 && awaiting_output_ == 0; }
  void begin_stop(int signal);
  void stop_leavers(int signal);
  void kill_workers();
  void abandon_workers();
  void workers_gone();
  void after_stop();
  void report_stopped();
  void depart();
  void join();
  int count(bool (*is)(const Slot&)) const;
  bool elastic() const;  // Every worker that holds a seat can be seated anew, or could.
  bool holds_living() const;
  std::span<Slot> plain_slots() {  // That a round of plain workers has.
    return std::span(slots_).first(static_cast<std::size_t>(options_.local_world_size));
  }
  void take_seat(const rendezvous::Seat& seat);
  void seat_living(const rendezvous::Seat& seat);
  void end_without_seat(const WorkerEnded& ended, Slot& slot);
  void finish();
  void end_with_a_round_before();
  void start_over();
  void plan_change(const rendezvous::StopRound& stop);
  void keep_on(const rendezvous::StopRound& stop);
  void fence_workers(int lost_rank, std::string why);
  void kill_those_that_stay();
  void try_leave();
  void leave_round();
  void give_up_without_daemon();
  void spawn(Slot& slot);
  void spawn_missing(bool fallen_too);
  void spawn_spares();
  void watch_beginners();
  void give_up_beginners();
  void kill_late();
  void report_empty_places();
  void leave_unready(const std::string& why);
  void send_join();
  void notify_slots();
  void clear_round();
  void clear_change();
  void leave_for(int status, std::optional<rendezvous::Verdict> verdict);
  void exit(int status, std::optional<rendezvous::Verdict> verdict);
  void send(rendezvous::AgentMessage message);

  // A tick that comes later than that: this machine stood still; the link may be mended at once.
  static constexpr std::chrono::seconds kStoodStill{1};

  SupervisorOptions options_;
  State state_ = State::kJoining;
  bool linked_ = false;
  TimePoint now_{};
  std::optional<rendezvous::Seat> seat_;
  int last_round_ = -1;  // The last round that we know of; there is no way back into it.
  int living_ = 0;
  int living_seated_ = 0;    // Of these.
  std::vector<Slot> slots_;  // By local rank.
  bool keeps_ = false;       // The daemon knows of workers that are seated anew.
  Announced announced_{};
  int serial_ = 0;                  // Of the newest Join or Slots.
  int restart_count_ = 0;           // As the daemon last sent it.
  std::int64_t kept_steps_ = 0;     // The most that a worker here had the state of.
  int min_ranks_ = 0;               // Its job computes in no round with fewer.
  bool newcomer_ = false;           // It has prepared workers, and never had a seat.
  int fallen_ = 0, respawned_ = 0;  // Workers without a seat that ended, and that were replaced.
  std::vector<int> fallen_awaiting_output_;  // Pids of those whose LastOutput is still to come.
  int awaiting_output_ = 0;                  // Have ended, but their last output is still to come.
  std::vector<WorkerDeath> deaths_;          // Of this round: all but the successes, by exit.
  std::vector<WorkerDeath> successes_;       // Of this round.
  bool failed_ = false;                      // The first of deaths_ ended the round on this node.
  TimePoint failed_at_{};                    // When that was noticed.
  std::optional<rendezvous::StopRound> order_;   // The daemon's order on how to go on.
  std::optional<rendezvous::StopRound> change_;  // kRunning: the workers leave at a boundary.
  std::optional<TimePoint> change_ends_;         // When they are fenced all the same.
  std::optional<TimePoint> leave_ends_;          // kLeaving: when those that stay are killed.
  std::optional<Exit> leaving_;                  // End with this once the workers are gone.
  std::optional<rendezvous::Leave> unsent_;      // To be sent once the daemon is back.
  bool ever_linked_ = false;
  std::optional<TimePoint> kill_at_;     // kStopping: when SIGTERM gives way to SIGKILL.
  std::optional<TimePoint> leavers_at_;  // kStopping: when those that leave are stopped, too.
  std::optional<TimePoint> abandon_at_;  // SIGKILL was sent: when not to wait for it any more.
  std::optional<TimePoint> give_up_at_;  // No link and nothing to compute.
  std::optional<TimePoint> fence_at_;    // No link, and the others may go on without us.
  std::optional<TimePoint> ready_ends_;  // kJoining, and no worker is ready: when that is given up.
  bool replaceable_ = false;             // As the daemon last sent it.
  bool fenced_ = false;                  // The workers are killed for that.
  std::string why_down_;                 // Of the last link that broke or did not come about.
  int preempted_ = 0;                    // The signal that has announced the end; 0: none.
  TimePoint preempted_at_{};             // When that was.
  std::optional<TimePoint> preempt_ends_;  // When it goes without leave, too.
  bool dismissed_ = false;                 // The node has left the run.
  bool stays_ = false;                     // And others need it, ...
  bool hosts_ = false;                     // ... for their daemon.
  std::optional<TimePoint> stay_ends_;     // When it goes all the same.
  bool deserted_ = false;                  // The daemon has ended for good.
  int signal_ = 0;                         // The first that ordered us to end.
  TimePoint signal_at_{};                  // When that was.
  std::vector<Action> actions_;
};

}  // namespace ddprun::agent
