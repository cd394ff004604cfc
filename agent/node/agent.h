#pragma once
// One node of a run, as a process: carries out what the Supervisor decides. The launcher makes one
// in each process it forks for a node.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/health/death_evidence.h"
#include "agent/health/flight_recorders.h"
#include "agent/health/progress_monitor.h"
#include "agent/ledger/node_ledger.h"
#include "agent/memory/memory_link.h"
#include "agent/node/daemon_link.h"
#include "agent/node/kept_server.h"
#include "agent/node/node_view.h"
#include "agent/node/reach_probe.h"
#include "agent/node/status_line.h"
#include "agent/node/worker_links.h"
#include "agent/output/console.h"
#include "agent/output/output.h"
#include "agent/placement/binding.h"
#include "agent/placement/gpu_memory.h"
#include "agent/placement/worker_environment.h"
#include "agent/process/chaos.h"
#include "agent/process/parent_watch.h"
#include "agent/supervisor/supervisor.h"
#include "agent/verdict/verdict_picture.h"
#include "agent/window/window.h"
#include "agent/workers/import_notes.h"
#include "agent/workers/posix_process_host.h"
#include "common/ports.h"
#include "common/system/signals.h"
#include "rendezvous/relay/relay_thread.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::agent {

// What the launcher has made once, for all of its nodes.
struct LaunchedJob {
  TimePoint began = std::chrono::steady_clock::now();  // When the run was started here.
  int launcher_pid = 0;                                // When it dies, so does everything here.
  std::string cgroup = {};                    // The job's, see agent/process/cgroup.h; empty: none.
  std::shared_ptr<WorkerRoster> roster = {};  // Of the job's workers; null: none.
};

// Paths where an agent leaves something for others; empty: not wanted.
struct AgentFiles {
  std::vector<std::string> verdict = {};  // Get the verdict as JSON if the run fails.
  std::string account = {};               // With group rank 0 it gets the run's account as JSON.
  std::string ledger = {};     // Gets the sums of its ledger: wall time, a blank, all parts.
  std::string ending = {};     // Gets, at the end, what is to be remembered of the run.
  std::string window = {};     // A socket for ddprunctl's queries.
  std::string recorders = {};  // See FlightRecorders; empty: no worker is queried.
  std::string imports = {};    // What the program imports is noted there; empty: it is not.
};

// The node's memory folder, and the end of the socket pair to the process that copies it.
struct MemoryPlace {
  std::string base = {};  // See agent/memory/memory_server.h; empty: there is none.
  std::uint64_t bytes = 0;
  int server_fd = -1;
  int port = 0;  // Where the server takes other nodes' copies; 0: there are no copies.
};

// The store at the endpoint's port (rendezvous/store/store_server.h), as this node reaches it.
struct StorePlace {
  std::string address = {};
  int port = 0;         // 0: the workers use the address and the port of the round's seat.
  int clients_fd = -1;  // On the node that hosts the endpoint: those that came there.
};

struct AgentOptions {
  std::string run_id;
  rendezvous::NodeOffer offer;  // Without address and store_port.
  // If other nodes reach this one at a router's address: where its store listens; empty:
  // everywhere.
  std::optional<std::string> store_listen_host;
  std::string address;  // Where other nodes reach this one; empty: the link's own address.
  int master_port = 0;  // Of the store, should this node become group rank 0; 0: any.
  StorePlace store_place;
  bool store_for_all_users = false;  // Of this machine; else for this process's own and root.
  std::optional<RemoteLinkOptions>
      daemon;  // Absent: no other node can come, rendezvous is in this process.
  std::vector<std::string> command;  // argv[0] resolved; "${local_rank}" still in it.
  OutputOptions output;
  std::vector<int> signals;  // That end this node's part in the run.
  bool virtual_local_rank = false;
  bool shares_machine = false;
  WorkerPlacement placement;      // By local rank.
  std::string signals_to_handle;  // As text, for workers.
  SupervisorOptions supervision;
  Limits worker_limits;  // Soft ones that workers get, whatever ours are.
  ChaosOptions chaos;    // Workers that are killed at random.
  StallPolicy stalls;    // What to do with workers that are alive but stuck.
  LaunchedJob job;
  AgentFiles files;
  std::string preload;  // Modules of the fork server, see ForkServer; empty: there is none.
  KeepOptions keep;     // The fork server, for later runs.
  // Called once the exit code is decided and everything that reports it is done. What this process
  // does afterwards can fail, or end, without harm. May be empty.
  std::function<void(int status)> on_decided;
  MemoryPlace memory;
  StdinChoice stdin_for;
  bool one_port = false;        // No worker connects to another node but through the daemon.
  bool reports_for_run = true;  // Prints what concerns all nodes: waiting and the verdict.
  bool status_line = false;     // On a terminal, while the workers run.
  std::string typed;            // What started the run, for the daemon's history; empty: unknown.
  // From the last words of the worker that failed first: one more line to print, or none.
  std::function<std::string(const std::string&)> hint;
};

class Agent {
 public:
  explicit Agent(AgentOptions options);

  // Until the run is over for this node. Returns the exit status.
  int run();

 private:
  void dispatch(const Event& event);
  void carry_out(const Action& action);
  void act(const SendJoin& join);
  void act(const SendMessage& send);
  void act(const StartWorkers& start);
  void act(const SpawnWorker& spawn);
  void act(const SeatWorkers& order);
  void act(const FenceWorkers& fence);
  void act(const AnnounceChange& change);
  void act(const KillWorkers& kill);
  void act(const SignalWorkers& signal);
  void act(const CleanUp&);
  void act(const AbandonWorkers&);
  void act(const LogLine& line);
  void act(const Exit& exit);

  // agent.cc: the loop, the link to the daemon, signals, and the store of a round.
  void connect();
  void preload();
  Result<void> start_fork_server();
  void await_imports(Duration time);
  void preloaded();
  void renew_fork_server(std::size_t learned);
  bool may_start_again() const;
  void receive(rendezvous::DaemonMessage message);
  void arm_deadline();
  void beat();
  void beat_every(Milliseconds interval);
  void send_heartbeat(bool with_counts, bool last = false);
  void open_relay();
  void use_relay();
  void relay(const rendezvous::Relay& order);
  Result<void> open_store();
  void take_seat(const rendezvous::Seat& seat);
  void close_store_ways();
  void forward_to_store();
  void report_data_network();
  void lead_gloo_outside();
  void probe_reach();
  Result<void> hold_signals();
  void await_signals();
  void take(const SentSignal& sent);
  void forward_signal(int signal);

  // agent.cc: the process that copies this node's memory folder.
  void open_memory();
  bool hold(const rendezvous::DaemonMessage& message);
  void drop_if_over(const rendezvous::DaemonMessage& message);
  void limit_fill();
  void filled();
  void release();
  void release_now();
  void take_report(const memory::Report& report);
  void send_memory_order();
  std::optional<rendezvous::MemoryUse> memory_use() const;

  // agent_workers.cc: the places of workers, and how one is started.
  int places() const;  // Of its workers and spares.
  void begin_places();
  void add_place(int local_rank);
  void note_reserve();
  WorkerStart start_of(int pid, TimePoint ordered) const;
  void spawn_all();
  Result<WorkerEnds> open_worker(int local_rank);
  void forget_worker(int local_rank);
  void begin_watches();
  WorkerDeath death_at_start(int local_rank, const Failure& why) const;
  WorkerSpec worker_spec(int local_rank, bool has_link);
  WorkerSpec fork_server_spec() const;
  WorkerContext worker_context(int local_rank) const;
  void place_store(const rendezvous::Seat& seat, RankFacts& facts) const;
  RankFacts rank_facts(const rendezvous::Seat& seat, int local_rank, int position,
                       int workers) const;
  void show_stopping();

  // agent_workers.cc: workers that keep their process from round to round.
  void listen_to_workers();
  UniqueFd open_link(int local_rank);
  void worker_ready(int local_rank, int min_world);
  void worker_left(int local_rank, int round, std::int64_t step);
  void worker_resumed(int local_rank, const worker_link::Resumed& resumed);
  void link_lost(int local_rank, const std::string& why);
  void mark_plain(int local_rank, const std::string& why);
  void send_seat(int local_rank);
  std::string name_of(int local_rank) const;
  int rank_of(int local_rank) const;           // -1: it was never seated.
  int restart_count_of(int local_rank) const;  // With which its process was started.

  // agent_ends.cc: how workers end and why, and what is reported of it.
  void worker_exited(WorkerDeath death, TimePoint noticed);
  void last_output_arrived(int local_rank);
  void complete_death(int local_rank);
  bool needs_memory_report(const WorkerDeath& death) const;
  GpuQuestion memory_question(const WorkerDeath& death) const;
  WorkerDeath preliminary(WorkerDeath death) const;
  void explain(WorkerDeath& death) const;
  void judge(WorkerDeath& death, const std::string& words) const;
  std::string output_of(int local_rank) const;
  void read_workers();
  void query_where(Duration limit, std::function<void(const std::string&)> done);
  void signal_workers(int signal);
  void stop_leavers(int signal);
  void wake_halted();
  void watch_launcher();
  void start_chaos();
  bool just_shown(const WorkerDeath& death) const;
  void hold_back(const LogLine& line);
  void log_now(const LogLine& line) const;
  std::string closing_picture(const Exit& exit) const;
  void report_verdict(const Exit& exit);
  void note_interruption(int signal);

  // agent_ends.cc: where the time of the places goes, and the account of the run.
  void keep_ledger();
  void count_later();
  rendezvous::NodeTimes times(bool whole) const;
  bool wants_account() const;
  void take_account(const rendezvous::Account& account);
  void await_account();
  void end();
  void write_account(const Exit& exit) const;
  std::optional<PictureStyle> picture_style() const;

  // agent_ends.cc: for those that watch the run.
  void open_window();
  Result<int> request_bundle();
  void keep_status();
  std::map<int, int> ranks() const;  // By local rank, of all places.
  NodeStanding standing() const;
  void leave_ending(const Exit& exit) const;

  AgentOptions options_;
  boost::asio::io_context loop_{1};
  Supervisor supervisor_;
  std::deque<Event> events_;  // The first is under way.
  PosixProcessHost processes_;
  ProgressMonitor progress_;
  FlightRecorders recorders_;
  NodeLedger ledger_;
  LogFolder logs_;
  Output output_;
  WorkerLinks links_;
  std::unique_ptr<DaemonLink> link_;
  rendezvous::RelayThread relay_;
  RelayPlace relay_place_;           // For the workers.
  std::uint16_t store_forward_ = 0;  // Where they reach the round's store; 0: where it is.
  ReachProbe reach_;
  std::string data_why_;        // As reported.
  std::string gloo_interface_;  // If the name of this host leads to loopback; else empty.
  bool reported_own_name_ = false;
  WaitingLine waiting_;
  bool shows_stopping_ = false;  // It shows which workers are waited for.
  std::unique_ptr<rendezvous::StoreServer> store_;
  std::string store_address_;  // At which this machine reaches it.
  bool warned_of_old_daemon_ = false;
  bool warned_of_loopback_ = false;
  bool store_used_ = false;  // A round has had it; the next one needs a fresh one.
  std::optional<rendezvous::Seat> seat_;
  // A place for a worker, and the worker that has it now.
  struct Place {
    RankFacts facts;        // Of its last seat, or of its predecessor's.
    int restart_count = 0;  // With which the process was started; its files are named by it.
    bool seated = false;    // It has a rank. It keeps the rank until it has the next one.
    bool ready = false;     // It has reported so on its link.
    // Has closed its link, and is about to end.
    std::unique_ptr<boost::asio::steady_timer> ending = nullptr;
  };
  std::map<int, Place> places_;       // By local rank.
  std::optional<ChangeCost> change_;  // Of this round, until all have reported.
  std::int64_t lost_steps_ = 0;       // Of its seat, until the first worker reports.
  Environment environment_;
  struct AwaitingOutput {
    WorkerDeath death;
    boost::asio::steady_timer patience;
    std::unique_ptr<GpuInquiry> inquiry = nullptr;  // Of the words that came: its evidence.
  };
  std::map<int, AwaitingOutput>
      awaiting_output_;  // Failed workers whose last words are still in the pipe.
  OomWatch oom_watch_;
  GpuLog gpu_log_;
  // How a worker was that still lived when a stop of its round began.
  struct StopState {
    bool exiting = false;  // Then it ends by itself.
    bool failing = false;  // It had printed why it was about to end, in these words.
    std::string words;
    std::string halted;   // By a signal or a debugger, as text; empty if not.
    bool killed = false;  // By us, it alone.
    bool left = false;    // It had ended its part in its group by itself, ...
    bool waited = false;  // ... and is not stopped yet: its own end may explain more.
  };
  std::map<int, StopState> stop_states_;  // By local rank.
  bool stop_began_ = false;               // Of this round's workers.
  int orders_ = 0;                        // To signal workers or to begin; the last is what counts.
  std::string complaint_;                 // The last error that was logged here.
  std::vector<std::string> noted_;        // Verdict files that have the interruption so far.
  std::optional<LogLine> held_back_;      // A death, until its consequence is printed (terminal).
  boost::asio::steady_timer hold_timer_;
  int stopped_by_ = 0;  // The signal that has ended this node's part.
  std::string stopped_why_;
  Milliseconds beat_interval_;
  TimePoint sync_reported_{};  // To the daemon.
  std::string account_;        // As far as it has come.
  bool account_whole_ = false;
  bool account_due_ = false;  // The daemon sends it once more.
  std::optional<Exit> last_;  // With which this ends once the account is there.
  NodeView view_;
  NodeWindow window_;
  StatusLine status_line_;
  boost::asio::steady_timer count_timer_;
  boost::asio::steady_timer account_timer_;
  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer beat_timer_;
  boost::asio::steady_timer preload_timer_;
  ImportNotes imports_;
  int renewals_left_ = 3;                // Of the fork server.
  std::optional<TimePoint> held_since_;  // Until the workers of that order are started.
  bool awaits_imports_ = false;          // The first workers wait for it,
  TimePoint imports_end_{};              // at most until then.
  std::uint64_t imports_ran_ = 0;        // ProcStat::ran of the fork server, at the last look.
  bool reported_cold_ = false;           // Why workers are not forks.
  KeptServer kept_;
  SentSignals sent_;
  boost::asio::posix::stream_descriptor signals_;  // Readable while sent_ has one.
  std::unique_ptr<memory::MemoryLink> memory_;     // Null: there is no memory folder.
  memory::Order memory_order_;                     // The last.
  // The order to start the first workers, while a fork server imports their modules or the memory
  // folder is filled.
  std::optional<rendezvous::DaemonMessage> held_;
  bool awaits_fill_ = false;
  boost::asio::steady_timer memory_timer_;
  std::uint64_t memory_used_ = 0;
  bool memory_relayed_ = false;              // Through the daemon.
  bool memory_copied_ = false;               // There is a copy ...
  std::optional<TimePoint> memory_changed_;  // ... which lacks what has changed since then.
  ParentWatch launcher_;
  Chaos chaos_;
  bool ending_ = false;
  int status_ = 0;
};

}  // namespace ddprun::agent
