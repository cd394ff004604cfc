#include "agent/agent.h"

#include <boost/asio/ip/address.hpp>
#include <csignal>
#include <type_traits>
#include <utility>

#include "agent/command.h"
#include "agent/last_words.h"
#include "agent/spawn.h"
#include "common/log.h"
#include "common/random_id.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLastWordsWait = 10ms;  // For what a dead worker still has in its pipe.
constexpr int kExitCannotStart = 127;

std::string seat_text(const rendezvous::Seat& s) {
  return "round " + std::to_string(s.round) + ": node " + std::to_string(s.group_rank) + " of " +
         std::to_string(s.group_world_size) + ", world size " + std::to_string(s.world_size) +
         ", restart count " + std::to_string(s.restart_count) + ", store " + s.master_address + ":" +
         std::to_string(s.master_port);
}

std::string waiting_text(const rendezvous::Waiting& w) {
  if (w.spare) return "held in reserve: the run has all the nodes it wants";
  const std::string wanted = w.nnodes_min == w.nnodes_max
                                 ? std::to_string(w.nnodes_max)
                                 : std::to_string(w.nnodes_min) + " to " + std::to_string(w.nnodes_max);
  return std::string(w.last_call ? "last call for more nodes: " : "waiting for nodes: ") +
         std::to_string(w.ready) + " of " + wanted + " here (" + w.text + ")";
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      supervisor_({.host = options_.offer.host,
                   .local_world_size = options_.offer.local_world_size,
                   .grace = options_.shutdown_timeout,
                   .connect_limit = options_.offer.config.join_timeout},
                  Clock::now()),
      processes_(loop_),
      logs_(options_.output.logs),
      output_(loop_, options_.output),
      waiting_(loop_),
      environment_(current_environment()),
      deadline_timer_(loop_),
      beat_timer_(loop_),
      signals_(loop_),
      forwarded_(loop_, SIGUSR1, SIGUSR2),
      launcher_(loop_) {}

int Agent::run() {
  processes_.on_exit = [this](const WorkerExit& exit) { worker_exited(exit); };
  output_.on_drained = [this](int local_rank) { report(local_rank); };
  watch_launcher();
  watch_signals();
  forward_signals();
  connect();
  beat();
  arm_deadline();
  loop_.run();
  return status_;
}

void Agent::connect() {
  const rendezvous::NodeId node = options_.offer.host + "." + random_hex(8);
  if (options_.daemon) {
    options_.daemon->run_id = options_.run_id;
    options_.daemon->node = node;
    link_ = remote_link(loop_, *options_.daemon);
  } else {
    link_ = embedded_link(loop_, options_.run_id, node);
  }
  link_->start({
      .on_up = [this] { dispatch(LinkUp{}); },
      .on_down =
          [this](const std::string& why) {
            dispatch(LinkDown{why});
            if (supervisor_.round() >= 0 || ending_) return;
            const auto due = supervisor_.deadline();
            waiting_.show("connecting to " + options_.daemon->host + ":" +
                              std::to_string(options_.daemon->port) + " (" + why + ")",
                          due ? *due - Clock::now() : 0s);
          },
      .on_message = [this](rendezvous::DaemonMessage message) { heard(std::move(message)); },
      .on_hopeless = [this](const std::string& why) { dispatch(Heard{rendezvous::Refuse{why}}); },
  });
}

void Agent::heard(rendezvous::DaemonMessage message) {
  if (const auto* waiting = std::get_if<rendezvous::Waiting>(&message)) {
    if (options_.speaks_for_run) waiting_.show(waiting_text(*waiting), waiting->left);
  } else if (!std::holds_alternative<rendezvous::Alive>(message)) {
    waiting_.done();
  }
  dispatch(Heard{std::move(message)});
}

void Agent::dispatch(const Event& event) {
  if (ending_) return;
  for (const Action& action : supervisor_.step(event, Clock::now())) carry_out(action);
  arm_deadline();
}

void Agent::carry_out(const Action& action) {
  if (!std::holds_alternative<Say>(action)) log::debug(to_string(action));
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

void Agent::beat() {
  beat_timer_.expires_after(rendezvous::beat_interval(options_.offer.config.heartbeat_timeout));
  beat_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || ending_) return;
    link_->send(rendezvous::Heartbeat{supervisor_.round()});
    beat();
  });
}

void Agent::act(const SendJoin& join) {
  options_.offer.address = options_.address.empty() ? link_->local_address() : options_.address;
  if (const auto opened = open_store(); !opened) {
    log::error(to_string(opened.error()));
    return act(Exit{.status = 1, .verdict = {}});
  }
  options_.offer.store_port = store_->port();
  link_->send(rendezvous::Join{options_.offer, join.after_round});
}

// Workers of a round meet in a store that no earlier round has seen.
Result<void> Agent::open_store() {
  if (store_ && !store_used_) return {};
  store_.reset();
  boost::system::error_code not_numeric;
  boost::asio::ip::make_address(options_.offer.address, not_numeric);
  rendezvous::StoreServerOptions store_options;
  if (!not_numeric) store_options.address = options_.offer.address;
  store_options.port = static_cast<std::uint16_t>(options_.master_port);
  auto store = rendezvous::StoreServer::listen(loop_, std::move(store_options));
  if (!store) return store.error();
  store_ = std::move(*store);
  store_used_ = false;
  return {};
}

void Agent::act(const StartWorkers& start) {
  seat_ = start.seat;
  log::debug(seat_text(*seat_));
  store_used_ = true;
  if (seat_->group_rank == 0) {
    if (const auto admitted = store_->admit(seat_->members); !admitted) {
      log::warning("some nodes may not reach the store: " + to_string(admitted.error()));
    }
  } else {
    store_.reset();
  }
  spawn_all(*seat_);
}

void Agent::spawn_all(const rendezvous::Seat& seat) {
  for (int local_rank = 0; local_rank < options_.offer.local_world_size; ++local_rank) {
    const auto why = spawn_one(seat, local_rank);
    if (!why) continue;
    rendezvous::WorkerDeath death;
    death.rank = seat.base_rank + local_rank;
    death.local_rank = local_rank;
    death.host = options_.offer.host;
    death.exit_code = kExitCannotStart;
    death.detail = *why;
    return dispatch(StartFailed{death});
  }
}

// Nothing, or why it could not be started.
std::optional<std::string> Agent::spawn_one(const rendezvous::Seat& seat, int local_rank) {
  auto ends = output_.open({.local_rank = local_rank,
                            .rank = seat.base_rank + local_rank,
                            .restart_count = seat.restart_count});
  if (!ends) return to_string(ends.error());
  WorkerContext context;
  context.error_file = logs_.error_file(seat.restart_count, local_rank);
  context.signals_to_handle = options_.signals_to_handle;
  context.virtual_local_rank = options_.virtual_local_rank;
  context.terminal_columns = output_.terminal_columns();
  WorkerSpec spec;
  spec.local_rank = local_rank;
  spec.argv = command_for_rank(options_.command, local_rank);
  spec.environment = worker_environment(rank_facts(seat, local_rank), context, environment_);
  spec.stdout_fd = ends->stdout_end.get();
  spec.stderr_fd = ends->stderr_end.get();
  const auto pid = processes_.spawn(spec);
  if (pid) return std::nullopt;
  output_.exited(local_rank);
  return to_string(pid.error());
}

RankFacts Agent::rank_facts(const rendezvous::Seat& seat, int local_rank) const {
  RankFacts facts;
  facts.rank = seat.base_rank + local_rank;
  facts.local_rank = local_rank;
  facts.world_size = seat.world_size;
  facts.local_world_size = options_.offer.local_world_size;
  facts.group_rank = seat.group_rank;
  facts.group_world_size = seat.group_world_size;
  facts.role_rank = seat.role_base_rank + local_rank;
  facts.role_world_size = seat.role_world_size;
  facts.role = options_.offer.role;
  facts.master_addr = seat.master_address;
  facts.master_port = seat.master_port;
  facts.restart_count = seat.restart_count;
  facts.max_restarts = options_.offer.config.max_restarts;
  facts.run_id = options_.run_id;
  return facts;
}

// A success is reported at once; a failure as soon as its last words have come through the pipe.
void Agent::worker_exited(const WorkerExit& exit) {
  output_.exited(exit.local_rank);
  const bool failed = exit.exit_code != 0 || exit.signal != 0;
  const auto [it, is_new] = pending_.try_emplace(exit.local_rank, Pending{exit, boost::asio::steady_timer(loop_)});
  if (!failed || !supervisor_.running() || output_.drained(exit.local_rank)) return report(exit.local_rank);
  it->second.patience.expires_after(kLastWordsWait);
  it->second.patience.async_wait([this, local_rank = exit.local_rank](const boost::system::error_code& ec) {
    if (!ec) report(local_rank);
  });
}

void Agent::report(int local_rank) {
  const auto it = pending_.find(local_rank);
  if (it == pending_.end()) return;
  const WorkerExit exit = it->second.exit;
  pending_.erase(it);
  if (supervisor_.living() > 0) dispatch(WorkerEnded{death_of(exit)});
}

rendezvous::WorkerDeath Agent::death_of(const WorkerExit& exit) const {
  rendezvous::WorkerDeath death;
  death.local_rank = exit.local_rank;
  death.rank = (seat_ ? seat_->base_rank : 0) + exit.local_rank;
  death.pid = exit.pid;
  death.host = options_.offer.host;
  death.exit_code = exit.exit_code;
  death.signal = exit.signal;
  const bool own_fault = (exit.exit_code != 0 || exit.signal != 0) && supervisor_.running();
  if (own_fault) {
    death.detail = last_words(output_.last_lines(exit.local_rank),
                              logs_.error_file(seat_ ? seat_->restart_count : 0, exit.local_rank));
  }
  return death;
}

void Agent::act(const SignalWorkers& signal) { processes_.signal_workers(signal.signal); }

void Agent::act(const CleanUp&) {
  processes_.kill_strays();
  store_.reset();
}

void Agent::act(const Say& say) {
  switch (say.level) {
    case Say::Level::kInfo: return log::info(say.text);
    case Say::Level::kWarning: return log::warning(say.text);
    case Say::Level::kError: return log::error(say.text);
  }
}

void Agent::act(const Exit& exit) {
  if (std::exchange(ending_, true)) return;
  status_ = exit.status;
  waiting_.done();
  store_.reset();
  boost::system::error_code ignored;
  deadline_timer_.cancel();
  beat_timer_.cancel();
  signals_.cancel(ignored);
  forwarded_.cancel(ignored);
  (void)output_.flush();
  const bool failed = exit.verdict && exit.verdict->kind != rendezvous::Verdict::Kind::kSuccess;
  if (failed && options_.speaks_for_run) log::error(exit.verdict->text);
  link_->close([this] { loop_.stop(); });
}

void Agent::watch_signals() {
  for (const int signal : options_.signals) signals_.add(signal);
  signals_.async_wait([this](const boost::system::error_code& ec, int signal) {
    if (ec) return;
    dispatch(Signalled{signal});
    if (!ending_) watch_signals();
  });
}

void Agent::forward_signals() {
  forwarded_.async_wait([this](const boost::system::error_code& ec, int signal) {
    if (ec) return;
    processes_.signal_workers(signal);
    forward_signals();
  });
}

void Agent::watch_launcher() {
  if (options_.launcher_pid == 0) return;
  const auto watched = launcher_.start(options_.launcher_pid, [this] {
    processes_.kill_everything();
    dispatch(LauncherDied{});
  });
  if (!watched) log::warning(to_string(watched.error()));
}

}  // namespace ddprun::agent
