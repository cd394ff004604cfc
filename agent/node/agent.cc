#include "agent/node/agent.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <type_traits>
#include <utility>

#include "agent/health/death_evidence.h"
#include "agent/node/reach.h"
#include "agent/process/proc_file.h"
#include "agent/supervisor/supervisor.h"
#include "agent/workers/child_start.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/own_networks.h"
#include "common/system/secrets.h"
#include "common/text/words.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How often the daemon gets what the workers' sync timers count.
constexpr auto kSyncEvery = 5s;
constexpr auto kHeldBack = 1s;
constexpr auto kFillLimit = 20s;  // For a sign of life while a memory folder is filled.
// The first workers wait so long for the imports of the fork server, and for longer while it uses
// the processor: cold workers would import side by side, and take longer still.
constexpr auto kPreloadLimit = 30s, kSlowPreloadLimit = 120s;
constexpr auto kStallQueryLimit = 5s;  // Where the workers are; most answer within milliseconds.

std::string seat_text(const rendezvous::Seat& s) {
  return "round " + std::to_string(s.round) + ": node " + std::to_string(s.group_rank) + " of " +
         std::to_string(s.group_world_size) + ", world size " + std::to_string(s.world_size) +
         ", restart count " + std::to_string(s.restart_count) + ", store " + s.master_address +
         ":" + std::to_string(s.master_port);
}

// Whether this host has a way to its own `address`; requests a route and sends nothing.
bool reaches_itself(const boost::asio::ip::address& address) {
  const boost::asio::ip::udp::endpoint endpoint(address, 9);
  const UniqueFd socket(
      ::socket(address.is_v6() ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return true;  // Not known.
  const int outcome =
      ::connect(socket.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size()));
  return outcome == 0 || (errno != ENETUNREACH && errno != EHOSTUNREACH && errno != EADDRNOTAVAIL);
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      supervisor_(options_.supervision, Clock::now()),
      processes_(loop_),
      progress_(loop_, options_.stalls),
      recorders_(loop_, options_.files.recorders),
      ledger_(options_.offer.local_world_size, options_.job.began),
      logs_(options_.output.logs),
      output_(loop_, options_.output),
      links_(loop_),
      relay_(options_.store_for_all_users),
      reach_(loop_),
      waiting_(loop_),
      environment_(current_environment()),
      hold_timer_(loop_),
      beat_interval_(rendezvous::beat_interval(options_.offer.config.heartbeat_timeout)),
      view_(options_.run_id, options_.offer.host + "." + random_hex(8), options_.job.began),
      window_(loop_, output_),
      status_line_(loop_, output_, options_.job.began),
      count_timer_(loop_),
      account_timer_(loop_),
      deadline_timer_(loop_),
      beat_timer_(loop_),
      preload_timer_(loop_),
      imports_(loop_, options_.files.imports, options_.command),
      kept_(options_.keep, processes_),
      signals_(loop_),
      memory_timer_(loop_),
      launcher_(loop_),
      chaos_(loop_, options_.chaos) {}

int Agent::run() {
  processes_.on_exit = std::bind_front(&Agent::worker_exited, this);
  progress_.on_kill = [this](int local_rank, int signal) {
    processes_.signal_worker(local_rank, signal);
  };
  keep_ledger();
  if (!options_.files.recorders.empty()) {
    progress_.query_where = [this](auto done) { query_where(kStallQueryLimit, std::move(done)); };
  }
  listen_to_workers();
  reach_.on_unreachable = [](const std::string& text) { log::warning(text); };
  output_.on_drained = [this](int local_rank) { last_output_arrived(local_rank); };
  processes_.use_roster(options_.job.roster);
  if (!options_.job.cgroup.empty()) {
    const auto placed = processes_.use_cgroup(options_.job.cgroup);
    if (!placed) log::debug(to_string(placed.error()));
  }
  open_memory();
  watch_launcher();
  if (const auto held = hold_signals(); !held) {
    log::error(to_string(held.error()));
    return kExitFailed;
  }
  preload();
  connect();
  arm_deadline();
  start_chaos();
  open_window();
  keep_status();
  loop_.run();
  if (options_.on_decided) options_.on_decided(status_);
  if (status_ != kExitPreempted) kept_.keep();
  return status_;
}

// The fork server imports while the node joins; its first workers wait for it, as they would have
// to import themselves. Of a program that nothing is known of yet they are started cold at once.
void Agent::preload() {
  if (options_.preload.empty()) return;
  imports_.on_settled = std::bind_front(&Agent::renew_fork_server, this);
  processes_.on_cold = [this](int local_rank, const std::string& why) {
    const std::string text = "preload: " + name_of(local_rank) + " is started cold: " + why;
    std::exchange(reported_cold_, true) ? log::debug(text) : log::info(text);
  };
  processes_.on_absent = [](const std::string& why) { log::info("preload: " + why); };
  if (options_.preload == "auto" && !imports_.knows()) {
    return log::debug("preload: nothing is known yet of what the program imports");
  }
  const auto begun = start_fork_server();
  if (!begun) {
    reported_cold_ = true;
    return log::info("preload: workers are started cold: " + begun.error().context);
  }
  awaits_imports_ = true;
  const Duration limit = options_.supervision.connect_limit;
  imports_end_ = Clock::now() + std::min<Duration>(kSlowPreloadLimit, limit / 4);
  await_imports(std::min<Duration>(kPreloadLimit, limit / 16) / 2);
}

// Ends after two looks at a server that is idle.
void Agent::await_imports(Duration time) {
  preload_timer_.expires_after(time);
  preload_timer_.async_wait([this, time](const boost::system::error_code& ec) {
    if (ec) return;
    const std::uint64_t ran = read_proc_stat(processes_.fork_server().pid()).ran;
    const bool goes_on = std::exchange(imports_ran_, ran) < ran && Clock::now() < imports_end_;
    goes_on ? await_imports(time) : preloaded();
  });
}

Result<void> Agent::start_fork_server() {
  WorkerSpec spec = fork_server_spec();
  const KeepOrder keep = kept_.order_for(spec, options_.preload);
  auto begun = processes_.preload(
      std::move(spec), options_.preload, [this] { preloaded(); }, keep);
  imports_.given();
  return begun;
}

// Or it takes longer than is waited for: then it is there for a restart.
void Agent::preloaded() {
  preload_timer_.cancel();
  const ForkServer& server = processes_.fork_server();
  if (server.state() == ForkServer::State::kReady) log::debug("preloaded " + server.why());
  awaits_imports_ = false;
  release();
}

// A program's first run has no fork server, or one that has imported little: once the imports of
// the first steps are known there is one, so that the first restart gains already.
void Agent::renew_fork_server(std::size_t learned) {
  constexpr std::size_t kWorthwhile = 10;  // Names of modules.
  const ForkServer& server = processes_.fork_server();
  const bool is_wanted =
      server.state() == ForkServer::State::kAbsent || server.state() == ForkServer::State::kReady;
  // The next run can add to one that is kept.
  const bool is_kept = options_.keep.file >= 0 && server.state() == ForkServer::State::kAbsent;
  if (!is_wanted || !(may_start_again() || is_kept)) return;
  if (ending_ || learned < kWorthwhile || renewals_left_ == 0) return;
  --renewals_left_;
  log::debug("preload: " + std::to_string(learned) + " modules were learned");
  const auto begun = start_fork_server();
  if (!begun) log::debug("preload: " + begun.error().context);
}

bool Agent::may_start_again() const {
  const rendezvous::RunConfig& config = options_.offer.config;
  return config.max_restarts > 0 || config.nnodes_min < config.nnodes_max;
}

void Agent::connect() {
  if (options_.daemon) {
    options_.daemon->run_id = options_.run_id;
    options_.daemon->node = view_.node();
    link_ = remote_link(loop_, *options_.daemon);
  } else {
    link_ = embedded_link(loop_, options_.run_id, view_.node());
  }
  open_relay();
  beat();
  link_->start({
      .on_up =
          [this] {
            use_relay();
            dispatch(LinkUp{});
          },
      .on_down =
          [this](const std::string& why, bool answers) {
            dispatch(LinkDown{why, answers});
            end();
            if (supervisor_.round() >= 0 || ending_) return;
            const auto due = supervisor_.deadline();
            const std::string what = "connecting to " + options_.daemon->host + ":" +
                                     std::to_string(options_.daemon->port);
            waiting_.show(why.starts_with(what) ? why : what + " (" + why + ")",
                          due ? *due - Clock::now() : 0s);
          },
      .on_message = [this](rendezvous::DaemonMessage message) { receive(std::move(message)); },
      .on_fatal = [this](const std::string& why) { dispatch(Received{rendezvous::Refuse{why}}); },
      .on_unreadable = [this](const std::string& what) { dispatch(CannotRead{what}); },
  });
}

void Agent::receive(rendezvous::DaemonMessage message) {
  if (const auto* order = std::get_if<rendezvous::Relay>(&message)) return relay(*order);
  if (hold(message)) return;
  if (const auto* alive = std::get_if<rendezvous::Alive>(&message)) beat_every(alive->beat);
  const auto* waiting = std::get_if<rendezvous::Waiting>(&message);
  if (const auto* account = std::get_if<rendezvous::Account>(&message)) take_account(*account);
  if (waiting) ledger_.spare(waiting->left == 0ms, Clock::now());
  const bool news = !waiting && !std::holds_alternative<rendezvous::Alive>(message);
  if (waiting && options_.reports_for_run && !shows_stopping_) {
    waiting_.show(waiting->text, waiting->left);
  }
  if (news && !shows_stopping_) waiting_.done();
  dispatch(Received{std::move(message)});
}

// Before the first worker starts: which node cannot reach which shows only then.
void Agent::open_relay() {
  if (!options_.daemon || options_.offer.config.nnodes_max == 1) return;
  relay_place_ = {.nonce = random_hex(16), .node = view_.node(), .always = options_.one_port};
  const auto port = relay_.serve_workers(options_.run_id, relay_place_.nonce);
  if (!port) return log::warning("no relayed streams for workers: " + to_string(port.error()));
  relay_place_.port = *port;
}

void Agent::use_relay() {
  const auto daemon = link_->daemon();
  if (!daemon) return;
  relay_.use_daemon({.host = daemon->host, .port = daemon->port, .token = options_.daemon->token});
}

// Another node, which cannot reach this one, wants to connect to a port here.
void Agent::relay(const rendezvous::Relay& order) {
  const auto daemon = link_->daemon();
  if (!daemon) return;
  relay_.meet({.host = daemon->host, .port = daemon->port, .token = options_.daemon->token},
              {.run_id = options_.run_id, .node = view_.node(), .stream = order.stream},
              static_cast<std::uint16_t>(order.port));
}

void Agent::open_memory() {
  if (options_.memory.server_fd < 0) return;
  memory_ = std::make_unique<memory::MemoryLink>(loop_, options_.memory.server_fd);
  memory_->on_report = [this](const memory::Report& report) { take_report(report); };
  if (options_.offer.memory_port) {
    relay_.open("memory", "127.0.0.1", static_cast<std::uint16_t>(*options_.offer.memory_port));
  }
}

// Whether the message waits: the order to start the first workers does until the fork server has
// imported their modules, and the seat of a node that replaces another one until the memory folder
// of that one is here. What the daemon sends about the round meanwhile ends the wait.
bool Agent::hold(const rendezvous::DaemonMessage& message) {
  const auto* assign = std::get_if<rendezvous::Assign>(&message);
  const bool begins = assign || std::holds_alternative<rendezvous::Prepare>(message);
  if (!begins) {
    const bool ends_wait = !std::holds_alternative<rendezvous::Alive>(message) &&
                           !std::holds_alternative<rendezvous::Waiting>(message) &&
                           !std::holds_alternative<rendezvous::Account>(message);
    if (held_ && ends_wait) drop_if_over(message);
    if (held_ && ends_wait) release_now();
    return false;
  }
  const bool is_first = supervisor_.round() < 0 && places_.empty();
  const bool is_again = held_.has_value();  // The daemon repeats what is not acknowledged.
  const bool fills = memory_ && assign && is_first && assign->seat.fill;
  const bool is_new_fill = fills && !awaits_fill_;  // Also behind a Prepare that is held.
  if (memory_ && assign) {
    const rendezvous::Seat& seat = assign->seat;
    memory_order_ = {.node = view_.node(),
                     .host = options_.offer.host,
                     .address = options_.offer.address,
                     .copy_to = seat.copy_to,
                     .fill = fills ? seat.fill : std::nullopt};
    if (!fills || is_new_fill) send_memory_order();
  }
  awaits_fill_ = fills;
  if (!fills && !(is_first && awaits_imports_)) return false;
  held_ = message;
  if (!is_again) held_since_ = Clock::now();
  if (is_new_fill) limit_fill();
  if (is_again && !is_new_fill) return true;
  if (!options_.reports_for_run) return true;
  if (fills) {
    waiting_.show("fetching the memory folder of the node that is replaced from " +
                      assign->seat.fill->from.host,
                  kFillLimit);
  } else if (waiting_.on_terminal()) {
    waiting_.show("importing modules for the workers", imports_end_ - Clock::now());
  }
  return true;
}

// A round that has ended before its workers could be started here: they are not started only to be
// stopped. The supervisor answers as if it had never received the order, and those of the next
// round wait for their modules like first ones.
void Agent::drop_if_over(const rendezvous::DaemonMessage& message) {
  const auto* assign = std::get_if<rendezvous::Assign>(&*held_);
  const auto* stop = std::get_if<rendezvous::StopRound>(&message);
  if (!assign || !stop || stop->round != assign->seat.round || awaits_fill_) return;
  held_.reset();
  log::info(stop->reason + ", before the workers of this node were started");
}

void Agent::limit_fill() {
  memory_timer_.expires_after(kFillLimit);
  memory_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) filled();
  });
}

void Agent::filled() {
  awaits_fill_ = false;
  release();
}

// If there is nothing left to wait for.
void Agent::release() {
  if (!awaits_fill_ && !awaits_imports_) release_now();
}

void Agent::release_now() {
  memory_timer_.cancel();
  memory_order_.fill.reset();
  awaits_fill_ = false;
  const auto order = std::exchange(held_, std::nullopt);
  if (!order) return;
  // The workers start: a fill that still goes on ends.
  if (memory_ && std::holds_alternative<rendezvous::Assign>(*order)) send_memory_order();
  waiting_.done();
  dispatch(Received{*order});
}

void Agent::take_report(const memory::Report& report) {
  using Kind = memory::Report::Kind;
  if (report.kind == Kind::kStarted && !memory_order_.node.empty()) send_memory_order();
  if (report.kind == Kind::kUsed || report.kind == Kind::kCopied) memory_used_ = report.used;
  if (report.kind == Kind::kChanged && !memory_changed_) memory_changed_ = Clock::now();
  if (report.kind == Kind::kCopied) {
    memory_copied_ = true;
    memory_relayed_ = report.relayed;
    memory_changed_.reset();
  }
  if (report.kind == Kind::kFilled || report.kind == Kind::kNotFilled) filled();
  if (report.kind == Kind::kFilling && held_ && awaits_fill_) limit_fill();
}

void Agent::send_memory_order() {
  if (const auto daemon = link_->daemon()) {
    memory_order_.daemon_host = daemon->host;
    memory_order_.daemon_port = daemon->port;
    memory_order_.one_port = options_.one_port;
  }
  memory_->send(memory_order_);
}

std::optional<rendezvous::MemoryUse> Agent::memory_use() const {
  if (options_.memory.base.empty()) return std::nullopt;
  rendezvous::MemoryUse use{.used = memory_used_, .size = options_.memory.bytes};
  const TimePoint now = Clock::now();
  if (memory_copied_) {
    use.behind = std::chrono::duration_cast<Milliseconds>(now - memory_changed_.value_or(now));
    use.relayed = memory_relayed_;
  }
  return use;
}

// An event that comes up while the actions of another are carried out waits for the rest of them.
void Agent::dispatch(const Event& event) {
  if (ending_) return;
  events_.push_back(event);
  if (events_.size() > 1) return;
  for (; !events_.empty(); events_.pop_front()) {
    if (ending_) continue;
    for (const Action& action : supervisor_.step(events_.front(), Clock::now())) carry_out(action);
  }
  arm_deadline();
  show_stopping();
}

void Agent::carry_out(const Action& action) {
  if (!std::holds_alternative<LogLine>(action)) log::debug(to_string(action));
  std::visit([this](const auto& a) { act(a); }, action);
}

void Agent::arm_deadline() {
  const auto due = supervisor_.deadline();
  if (!due || ending_) return static_cast<void>(deadline_timer_.cancel());
  deadline_timer_.expires_at(*due);
  deadline_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) dispatch(Tick{});
  });
}

// The daemon sets the interval, because it knows the number of nodes.
void Agent::beat_every(Milliseconds interval) {
  if (interval == beat_interval_ || interval == 0ms) return;
  const bool sooner = interval < std::exchange(beat_interval_, interval);
  if (sooner && !ending_) beat();
}

void Agent::beat() {
  beat_timer_.expires_after(beat_interval_);
  beat_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || ending_) return;
    send_heartbeat(Clock::now() - sync_reported_ >=
                   std::max<Duration>(kSyncEvery, 2 * beat_interval_));
    beat();
  });
}

// What the sync timers count, and the ledger, go with some of the beats.
void Agent::send_heartbeat(bool with_counts, bool last) {
  rendezvous::Heartbeat heartbeat{supervisor_.round()};
  if (with_counts) {
    heartbeat.sync = progress_.unreported_sync();
    heartbeat.times = times(/*whole=*/last);
    if (options_.daemon) view_.report(*heartbeat.times, Clock::now());
  }
  if (!link_->send(heartbeat) || !with_counts) return;
  progress_.sync_reported();
  sync_reported_ = Clock::now();
}

// The last message on a round also reports what was counted in it.
void Agent::act(const SendMessage& send) {
  const bool last = std::holds_alternative<rendezvous::Finished>(send.message) ||
                    std::holds_alternative<rendezvous::Stopped>(send.message) ||
                    std::holds_alternative<rendezvous::Leave>(send.message);
  if (last) send_heartbeat(/*with_counts=*/true, /*last=*/true);
  rendezvous::AgentMessage message = send.message;
  if (auto* failed = std::get_if<rendezvous::Failed>(&message)) {
    failed->unreachable = reach_.unreachable();
  } else if (auto* stopped = std::get_if<rendezvous::Stopped>(&message)) {
    stopped->unreachable = reach_.unreachable();
  }
  const bool sent = link_->send(message);
  if (std::holds_alternative<rendezvous::Leave>(send.message)) {
    account_due_ = sent && wants_account();
  }
}

void Agent::act(const SendJoin& join) {
  options_.offer.link_address = link_->local_address();
  options_.offer.address =
      options_.address.empty() ? options_.offer.link_address : options_.address;
  if (const auto opened = open_store(); !opened) {
    log::error(to_string(opened.error()));
    return act(Exit{.status = 1, .verdict = {}});
  }
  options_.offer.store_port = store_->port();
  rendezvous::NodeOffer offer = options_.offer;
  offer.local_world_size = join.workers;
  link_->send(rendezvous::Join{std::move(offer), join.after_round, join.living, join.serial,
                               join.beginning, /*prepares=*/true, join.holders, join.kept_steps,
                               join.min_ranks});
}

// Workers of a round meet in a store that no earlier round has seen.
Result<void> Agent::open_store() {
  if (store_ && !store_used_) return {};
  store_.reset();
  boost::system::error_code not_numeric;
  const std::string listens = options_.store_listen_host.value_or(options_.offer.address);
  const auto own = boost::asio::ip::make_address(listens, not_numeric);
  rendezvous::StoreServerOptions store_options;
  if (!not_numeric) store_options.address = listens;
  store_address_ = not_numeric ? "127.0.0.1" : listens;
  if (!not_numeric && !reaches_itself(own) && !std::exchange(warned_of_loopback_, true)) {
    log::warning(listens + " cannot be reached from " + options_.offer.host +
                 " itself, and ranks that communicate will wait in vain: is the loopback interface "
                 "down? ip link set lo up");
  }
  store_options.port = static_cast<std::uint16_t>(options_.master_port);
  store_options.await_admission = true;
  store_options.handed_over_fd = options_.store_place.clients_fd;
  store_options.own_user_only = !options_.store_for_all_users;
  auto store = rendezvous::StoreServer::listen(loop_, std::move(store_options));
  if (!store) return store.error();
  store_ = std::move(*store);
  store_used_ = false;
  return {};
}

void Agent::act(const StartWorkers& start) {
  take_seat(start.seat);
  begin_places();
  spawn_all();
}

void Agent::take_seat(const rendezvous::Seat& seat) {
  seat_ = seat;
  lost_steps_ = seat.lost_steps;
  log::debug(seat_text(*seat_));
  store_used_ = true;
  close_store_ways();
  const StoreWay way = store_way(*seat_, options_.one_port);
  if (way == StoreWay::kForwards) forward_to_store();
  if (way == StoreWay::kUnknown && !std::exchange(warned_of_old_daemon_, true)) {
    log::warning(
        "--one-port: the rendezvous daemon is an older ddprun, which does not lead to the workers' "
        "store: they connect to " +
        seat_->master_address + ":" + std::to_string(seat_->master_port) +
        " directly; install the same ddprun on every node");
  }
  report_data_network();
  lead_gloo_outside();
  probe_reach();
  if (seat_->group_rank != 0) return store_.reset();
  DDPRUN_ASSERT(store_);
  if (way == StoreWay::kOpens) relay_.open("store", store_address_, store_->port());
  // One node may be known by a name: what runs on this machine is let in by any address.
  if (const auto admitted = store_->admit(seat_->members);
      !admitted && seat_->group_world_size > 1) {
    log::warning("some nodes may not reach the store: " + to_string(admitted.error()));
  }
}

// Once, unless a later round has another one.
void Agent::report_data_network() {
  if (seat_->data_why.empty() || seat_->data_why == data_why_) return;
  data_why_ = seat_->data_why;
  seat_->data_warns ? log::warning(data_why_) : log::info(data_why_);
}

// PyTorch's Gloo listens where the host's own name leads. Installers lead it to 127.0.1.1, where no
// other host reaches it.
void Agent::lead_gloo_outside() {
  gloo_interface_.clear();
  const std::string& address = options_.offer.address;
  if (seat_->group_world_size < 2 || seat_->data || is_loopback(address)) return;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return;
  std::ifstream file("/etc/hosts");
  const std::string hosts{std::istreambuf_iterator<char>(file), {}};
  const std::string loopback = loopback_in_hosts(hosts, name.data());
  if (loopback.empty()) return;
  gloo_interface_ = interface_of(address);
  if (gloo_interface_.empty() || std::exchange(reported_own_name_, true)) return;
  log::info("/etc/hosts leads this host's own name, " + std::string(name.data()) + ", to " +
            loopback + ", where no other host reaches PyTorch's Gloo: it gets GLOO_SOCKET_IFNAME=" +
            gloo_interface_ + ", unless that is set");
}

// Through one port there is nothing to be reached but the daemon.
void Agent::probe_reach() {
  if (options_.one_port) return;
  const bool is_at_endpoint = seat_->store_at_endpoint && options_.store_place.port != 0;
  const auto daemon = link_->daemon();
  reach_.begin(reach_targets(*seat_, options_.offer.address, is_at_endpoint),
               {.host = options_.offer.host,
                .hosts_endpoint = options_.offer.hosts_endpoint,
                .daemon_address = link_->peer_address(),
                .daemon_port = daemon ? daemon->port : 0});
}

// Those of an earlier round.
void Agent::close_store_ways() {
  store_forward_ = 0;
  relay_.stop_forwarding();
  relay_.shut("store");
}

void Agent::forward_to_store() {
  const auto port =
      relay_.forward(seat_->master_node, static_cast<std::uint16_t>(seat_->master_port));
  if (!port) return log::warning("no way to the workers' store: " + to_string(port.error()));
  store_forward_ = *port;
}

void Agent::act(const CleanUp&) {
  processes_.kill_strays();
  close_store_ways();
  store_.reset();
}

void Agent::act(const AbandonWorkers&) {
  for (const std::string& worker : processes_.abandon()) {
    log::error("survives SIGKILL: " + worker);
  }
}

// On a terminal each death is printed once: with the restart or the verdict, if it follows soon.
void Agent::act(const LogLine& line) {
  if (line.level == LogLine::Level::kError) complaint_ = line.text;
  if (line.about == LogLine::About::kDeath && picture_style()) return hold_back(line);
  if (line.about == LogLine::About::kRestart) held_back_.reset();
  hold_timer_.cancel();
  if (const auto before = std::exchange(held_back_, std::nullopt)) log_now(*before);
  log_now(line);
}

void Agent::hold_back(const LogLine& line) {
  if (const auto before = std::exchange(held_back_, line)) log_now(*before);
  hold_timer_.expires_after(kHeldBack);
  hold_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec) return;
    if (const auto held = std::exchange(held_back_, std::nullopt)) log_now(*held);
  });
}

void Agent::log_now(const LogLine& line) const {
  switch (line.level) {
    case LogLine::Level::kInfo: return log::info(line.text);
    case LogLine::Level::kWarning: return log::warning(line.text);
    case LogLine::Level::kError: return log::error(line.text);
  }
}

void Agent::act(const Exit& exit) {
  if (std::exchange(ending_, true)) return;
  status_ = exit.status;
  waiting_.done();
  store_.reset();
  boost::system::error_code ignored;
  chaos_.stop();
  deadline_timer_.cancel();
  beat_timer_.cancel();
  preload_timer_.cancel();
  imports_.close();
  memory_timer_.cancel();
  if (memory_) memory_->close();
  count_timer_.cancel();
  hold_timer_.cancel();
  status_line_.stop();
  reach_.stop();
  signals_.close(ignored);
  (void)output_.flush();
  report_verdict(exit);
  last_ = exit;
  await_account();
}

namespace {

// Signals that a launcher passes on regardless of --signals-to-handle.
constexpr std::array kAlwaysForwarded = {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

}  // namespace

// What came before has been held back by the launcher; all that is not held here acts as ever.
Result<void> Agent::hold_signals() {
  std::vector<int> handled = options_.signals;
  handled.insert(handled.end(), kAlwaysForwarded.begin(), kAlwaysForwarded.end());
  handled.push_back(passed_on_signal());
  auto held = SentSignals::hold(handled);
  if (!held) return held.error();
  sent_ = std::move(*held);
  signals_.assign(sent_.watched());
  await_signals();
  sigset_t others;
  ::sigfillset(&others);
  for (const int signal : handled) ::sigdelset(&others, signal);
  ::sigprocmask(SIG_UNBLOCK, &others, nullptr);
  return {};
}

void Agent::await_signals() {
  using boost::asio::posix::stream_descriptor;
  signals_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    for (SentSignal sent = sent_.next(); sent.signal != 0 && !ending_; sent = sent_.next()) {
      take(sent);
    }
    if (!ending_) await_signals();
  });
}

void Agent::take(const SentSignal& sent) {
  const SignalRules rules{.ends_node = options_.signals,
                          .preempts = options_.supervision.preempt_signals,
                          .launcher = options_.job.launcher_pid};
  const SignalUse use = use_of(sent.signal, sent.sender, ::getppid(), rules);
  if (use == SignalUse::kIgnore) {
    return log::debug("ignored signal " + std::to_string(sent.signal) + " of process " +
                      std::to_string(sent.sender));
  }
  if (use == SignalUse::kForward) return forward_signal(sent.signal);
  const std::string why = time_limit_over(sent.signal);
  if (stopped_by_ == 0) stopped_by_ = sent.signal, stopped_why_ = why;
  dispatch(Signalled{sent.signal, why});
  note_interruption(sent.signal);
}

void Agent::forward_signal(int signal) {
  // The kernel drops SIGTSTP for sessions without a terminal, which is what workers have.
  processes_.signal_workers(signal == SIGTSTP ? SIGSTOP : signal);
  if (signal == SIGTSTP || signal == SIGCONT) progress_.pause(signal == SIGTSTP);
  if (signal == SIGTSTP) output_.hide_status();
}

}  // namespace ddprun::agent
