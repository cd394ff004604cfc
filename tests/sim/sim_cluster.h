#pragma once
// A whole run in one thread: the real Coordinator and one real Supervisor per host, with simulated
// workers, disk, network and clock. Everything that happens follows from the seed.
//
// The network promises what TCP does: bytes of one connection arrive in order, or the connection
// breaks and what was under way is lost. A cut cable delays; it breaks nothing until a limit of one
// side is over. A process that stands still is deaf, but its kernel takes and acknowledges what
// comes.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/supervisor/supervisor.h"
#include "rendezvous/coordinator/gate.h"

namespace ddprun::sim {

using rendezvous::LinkId;
using rendezvous::NodeId;

struct ClusterOptions {
  std::uint64_t seed = 1;
  int hosts = 4;
  int local_world_size = 2;
  int spares = 0;  // Of workers, a host.
  // Agents know of other daemons, and so leave one that is silent though its kernel answers.
  bool several_daemons = false;
  rendezvous::RunConfig config;
  // Workers report after a while that they can be seated anew; those of host "h`plain_host`" never
  // do.
  bool elastic = false;
  int plain_host = -1;
  bool quiet = false;    // Steps are short, and nothing fails by itself.
  bool prepares = true;  // Agents understand Prepare.
  bool hangs = false;    // A few workers without a seat never get ready for one.
  bool hosted = false;   // The daemon goes for good when the agent of "h0" has left the run.
  bool relays = false;   // Hosts want streams to each other, through the daemon.
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  void run_for(Milliseconds duration);
  // Until every agent has ended; false if that took longer than `limit`.
  bool run_until_over(Milliseconds limit);

  // Faults, by host name ("h0"). A crash closes the connection; a power cut is silent.
  void crash_agent(const std::string& host);
  void power_off(const std::string& host);
  void boot(const std::string& host);
  void cut_cable(const std::string& host);
  void cut_one_way(const std::string& host, bool up);
  void mend_cable(const std::string& host);
  // `daemon_sees`: else only the next hello shows it that the connection was dead.
  void break_link(const std::string& host, bool daemon_sees = true);
  void fail_worker(const std::string& host);
  void signal_agent(const std::string& host);
  void kill_daemon(bool torn_record);
  void stop_daemon(Milliseconds how_long);  // As SIGSTOP does, or a machine that was suspended.
  void stop_agent(const std::string& host, Milliseconds how_long);
  void stop_all(Milliseconds how_long);       // Daemon and agents together.
  void spoil_cable(const std::string& host);  // 200 ms each way, and each fifth packet is lost.
  void drain(const std::string& host);
  void preempt(const std::string& host);
  void preempt_all(Milliseconds within);
  // The signal goes to each process of the node, as some batch systems send it: workers die of it.
  void preempt_all_processes(const std::string& host);
  void preempt_while_reconnecting(const std::string& host);
  void preempt_at_random(std::mt19937_64& random);
  void desert();  // The launcher of the host that hosts the daemon ends, and the daemon with it.
  void cancel();
  void resize(int nodes);
  void shut_down_daemon();  // It ends its runs, and waits for the agents to go.
  void start_daemon();
  void flap_on_next_order(const std::string& host);  // The link breaks as a seat or an end arrives.
  void kill_daemon_on_next_record();  // It dies with the record half written and nothing sent.
  void fill_disk() { disk_full_ = true; }
  void free_disk();
  void fault_at_random();
  void elastic_fault(const std::string& host);

  void mend_everything();
  void let_workers_finish();  // Those that run now too.

  bool over() const;
  std::set<int> exit_statuses() const { return exit_statuses_; }
  const std::vector<std::string>& broken() const {
    return broken_;
  }  // Invariants that did not hold.
  std::string describe() const;
  const rendezvous::Run* run() const;
  int failures() const { return failures_; }
  int spawned() const { return spawned_; }  // Replacements.
  int killed() const { return killed_; }    // One by one: they did not leave a round.
  int fenced() const { return fenced_; }    // Workers that had not left their round before.
  int reseated() const { return reseated_; }
  int joined() const { return joined_; }    // Streams through the daemon.
  std::set<int> world_sizes() const;        // Of all rounds.
  int started() const { return started_; }  // Workers that were started with a seat.
  // Of the round that runs; 0: none does.
  int world_size() const;
  bool is_up(const std::string& host) const { return hosts_.at(host).agent != nullptr; }
  // With what its agent ended last by itself; -1: it has not.
  int exit_code(const std::string& host) const { return hosts_.at(host).exit_code; }
  int rounds_started() const { return static_cast<int>(rounds_.size()); }

 private:
  struct Worker {
    bool alive = false;
    bool deaf = false;
    std::uint64_t process = 0;  // Its name.
    int round = -1;             // Of the seat that it holds, or held last; -1: none.
    // Elastic workers only.
    bool ready = false;
    bool left = false;       // It is in no operation of its round any more.
    bool halted = false;     // It answers no fence.
    bool signalled = false;  // Its agent has sent it a signal.
    bool fenced = false;
    int resumed = -1;       // The last round that it took part in.
    int beginning = 0;      // From which beginning of the training its state stems; 0: it has none.
    bool done = false;      // It has exited with 0.
    bool returned = false;  // Its work is done: it ends, whatever it receives.
    std::optional<TimePoint> begins_since{};  // It has no seat, and is not ready for one.
  };
  struct Host {
    std::unique_ptr<agent::Supervisor> agent;
    int life = 0;
    NodeId node;
    LinkId link = 0;  // As the agent sees it; 0: none.
    bool connecting = false;
    bool cut_up = false, cut_down = false;  // Nothing gets to, or from, the daemon.
    bool cut() const { return cut_up || cut_down; }
    bool lossy = false;
    TimePoint stands_until{};
    bool flap_on_order = false;
    TimePoint last_received{};
    bool greeted = false;  // By the daemon, on this link.
    std::vector<Worker> workers;
    int workers_round = -1;
    std::optional<TimePoint> down_since;     // As its agent knows it.
    std::optional<TimePoint> unready_since;  // It has workers, and none that could take a seat.
    bool interrupted = false;                // This life of its agent was.
    bool preempted = false;                  // It was, before it was interrupted.
    int exit_code = -1;
  };
  struct Link {
    std::string host;
    int life = 0;
    bool daemon_side = true, agent_side = true;  // Which sides take it for alive.
    std::string hello;                           // As the daemon has received it ...
    std::uint64_t hello_sequence = 0;            // ... and when.
    // Under way, in order. Nothing: the end, after all that was sent before.
    std::deque<std::optional<std::string>> up, down;
    TimePoint up_ready{}, down_ready{};  // No packet overtakes the one before.
    std::vector<TimePoint>
        acknowledged;      // When the agent's kernel will answer what was sent to it.
    TimePoint answered{};  // When it last did.
  };
  // Through the daemon.
  struct Stream {
    bool answered = false;  // The daemon has answered who has dialled ...
    bool given_up = false;  // ... who has not waited for it.
    bool joined = false;
  };
  struct StreamEnd {
    std::size_t stream = 0;  // Which the end is meant for.
    bool dials = false;      // Else it was called.
  };
  struct RoundRecord {
    int restart_count = 0, world_size = 0;
    std::map<int, NodeId> owner_of_rank;
    bool changing = false;  // A boundary between steps is on its way.
    bool resumed = false;   // All its workers take part.
  };

  void after(Milliseconds delay, std::function<void()> what);
  Milliseconds latency();
  Milliseconds latency(const Host& host);
  Milliseconds resending();
  void will_acknowledge(LinkId id);
  void take_acknowledgements(LinkId id);
  bool stands(const Host& host) const { return now_ < host.stands_until; }
  // In the moment in which it goes on it notices that it stood still, and reads nothing before.
  bool daemon_stands() const { return now_ <= daemon_stands_until_; }
  // At once, or when the host's agent goes on, somewhere among all that it then finds.
  void when_awake(const std::string& host, std::function<void()> what);
  void put_up(LinkId link, std::optional<std::string> what);
  void put_down(LinkId link, std::optional<std::string> what);
  bool patient(const Host& host) const;
  void daemon_wakes(TimePoint stood_since);
  void daemon_polls();
  void daemon_reads(LinkId link);
  void notice_failure(const std::string& host, std::size_t local_rank);
  void dial_later(const std::string& host);
  void dial(const std::string& host);
  void end_sends(LinkId end, std::optional<std::string> what, Milliseconds delay);
  void expect_answer(std::size_t stream);
  void meet_later(const std::string& host, const rendezvous::Relay& call);
  bool ends_hear(const rendezvous::LinkAction& action);
  void join(const rendezvous::Bridge& bridge);
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  void dispatch(const std::string& host, const agent::Event& event);
  void carry_out(const std::string& host, const agent::Action& action);
  void start_workers(const std::string& host, const rendezvous::Seat& seat);
  bool elastic(const std::string& host) const;
  bool same(const std::string& host, int life, std::size_t local_rank, std::uint64_t process);
  bool hangs(const std::string& host, const Worker& worker) const;
  void end_plain_later(const std::string& host, std::size_t local_rank);
  void check_beginners(const std::string& host);
  void get_ready_later(const std::string& host, std::size_t local_rank);
  void notify_agent(const std::string& host, std::size_t local_rank, Milliseconds delay,
                    const agent::Event& event);
  void spawn_worker(const std::string& host, const agent::SpawnWorker& spawn);
  void seat_workers(const std::string& host, const agent::SeatWorkers& seat);
  void fence_workers(const std::string& host, int round);
  void leave_later(const std::string& host, std::size_t local_rank);
  void announce_change(int round);
  int there(int round) const;
  void resume_later(int round);
  void resume(int round);
  void return_later(int round);
  void return_workers(int round);
  void check_one_beginning();
  void reach_boundary(int round);
  void kill_workers(const std::string& host, const std::vector<int>& local_ranks);
  void make_plain(const std::string& host);
  void fail_unseated(const std::string& host);
  void finish_later(const std::string& host, std::size_t local_rank);
  void end_worker(const std::string& host, std::size_t local_rank, int exit_code, int signal);
  void signal_workers(const std::string& host, int signal);
  void send_up(const std::string& host, const rendezvous::AgentMessage& message);
  void connect(const std::string& host);
  void connected(const std::string& host, int life);
  void beat(const std::string& host, int life);
  void drop_by_agent(const std::string& host, const std::string& why, bool daemon_sees = true);
  void pump_up(LinkId link);
  void repeat_up(LinkId link, const std::string& body);
  void pump_down(LinkId link);
  // Of this link; link 0: a tick. No body: it was closed.
  void daemon_takes(LinkId link, const std::optional<std::string>& body);
  void make_twin(LinkId speaking);
  void daemon_does(rendezvous::Gate::Work work);
  void daemon_sends(rendezvous::LinkAction& action);
  void write_backlog();
  void check_verdict();
  void compact();
  TimePoint daemon_now() const { return now_ + clock_offset_; }
  void arm_daemon_tick();
  void arm_agent_tick(const std::string& host);
  void trace(const std::string& text) const;
  void check(bool holds, const std::string& what);
  void count_message(const std::string& host);
  void fail_victims(const std::string& host);
  void check_round(const std::string& host, const rendezvous::Seat& seat);
  void check_others_left(const rendezvous::Seat& seat);
  void check_may_start(const std::string& host, const rendezvous::Seat& seat);
  rendezvous::NodeOffer offer(const std::string& host) const;

  struct Timer {
    TimePoint when;
    std::uint64_t sequence;
    std::function<void()> what;
    bool operator>(const Timer& o) const {
      return when != o.when ? when > o.when : sequence > o.sequence;
    }
  };

  ClusterOptions options_;
  std::mt19937_64 random_;
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t sequence_ = 0;
  std::uint64_t processes_ = 0;
  int spawned_ = 0, started_ = 0, killed_ = 0, reseated_ = 0, fenced_ = 0;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;

  std::unique_ptr<rendezvous::Gate> daemon_;
  int daemon_life_ = 0;
  int daemon_boot_ = 0;  // Its clock's name; each has another zero.
  Duration clock_offset_{};
  std::string disk_;
  std::deque<std::string> backlog_;  // Appended, and not on the disk yet.
  // Made from the daemon's snapshot at some moment, and given all that the daemon receives since.
  std::unique_ptr<rendezvous::Coordinator> twin_;
  std::string sent_;  // By the daemon, since it took what it takes.
  bool disk_full_ = false;
  TimePoint disk_freed_{};
  bool die_on_record_ = false;
  bool deserted_ = false;  // No daemon comes any more.
  LinkId link_next_ = 1;
  std::map<LinkId, Link> links_;
  std::vector<Stream> streams_;
  std::map<LinkId, StreamEnd> ends_;  // Which are at the daemon, and not joined.
  int joined_ = 0;
  std::map<std::string, Host> hosts_;
  bool workers_finish_ = false;
  bool run_ended_ = false;
  std::set<int> exit_statuses_;
  std::map<int, RoundRecord> rounds_;
  std::set<NodeId> dismissed_;
  std::map<NodeId, int> drained_;  // And the last round that they may have been in.
  TimePoint daemon_stands_until_{}, daemon_woke_{};
  int beginnings_ = 0;       // How often workers began the training without any state.
  std::set<int> failed_in_;  // Rounds in which a worker failed of its own doing.
  // What the daemon has decided for good: nothing may bring the run back.
  std::optional<rendezvous::Verdict::Kind> final_;
  int failures_ = 0;                    // Of workers, of their own doing.
  std::map<NodeId, int> messages_;      // Up and down since messages_since_.
  std::map<NodeId, int> busy_seconds_;  // With more than sixty of them each, in a row.
  TimePoint messages_since_{};
  std::vector<std::string> broken_;
};

}  // namespace ddprun::sim
