#include "rendezvous/daemon/server.h"

#include <algorithm>
#include <utility>

#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "common/text/words.h"

namespace ddprun::rendezvous {
namespace {

std::string client_names(const C10dOptions& options) {
  if (!options.allow.empty()) {
    std::string text = "this machine";
    for (const std::string& address : options.allow) text += ", " + address;
    return text;
  }
  return is_loopback(options.address) ? "this machine" : "everybody who reaches it";
}

}  // namespace

Result<std::unique_ptr<StoreServer>> open_c10d_port(boost::asio::io_context& io,
                                                    const C10dOptions& options) {
  if (!options.port) return std::unique_ptr<StoreServer>();
  StoreServerOptions store;
  store.address = options.address;
  store.port = *options.port;
  store.admit_everyone = options.allow.empty();
  auto server = StoreServer::listen(io, std::move(store));
  if (!server) return server.error();
  if (Result<void> admitted = (*server)->admit(options.allow); !admitted) return admitted.error();
  log::info("torchrun's c10d rendezvous on " + options.address + ":" +
            std::to_string((*server)->port()) + ", without a token, for " + client_names(options));
  return server;
}

namespace {

using Clock = std::chrono::steady_clock;

// From here on the standstill is taken out of the time of every node.
constexpr Milliseconds kStandstillMin{250};
// A node that has lost its link tries to connect each second or more often.
constexpr Milliseconds kStrangerPatience{5000};

}  // namespace

Server::Server(boost::asio::io_context& io, ServerOptions options, Memory memory,
               std::function<void()> on_over)
    : io_(io),
      options_(std::move(options)),
      on_over_(std::move(on_over)),
      timer_(io),
      log_(std::move(memory.log)),
      history_(std::move(memory.history)) {}

Result<std::unique_ptr<Server>> Server::open(boost::asio::io_context& io, ServerOptions options,
                                             Memory memory, std::function<void()> on_over) {
  const Journal journal = std::move(memory.journal);
  std::unique_ptr<Server> server(
      new Server(io, std::move(options), std::move(memory), std::move(on_over)));
  if (server->options_.store_fd >= 0) {
    server->store_ = std::make_unique<StoreHandOver>(io, UniqueFd(server->options_.store_fd));
    server->options_.listen.on_store_client = [self = server.get()](AcceptedSocket client) {
      self->hand_over(std::move(client));
    };
  }
  auto listener = Listener::open(
      io, server->options_.listen,
      [self = server.get()](const std::shared_ptr<Link>& link) { self->accept(link); });
  if (!listener) return listener.error();
  server->listener_ = std::move(*listener);
  server->gate_.serve_only(server->options_.only_run);
  server->gate_.number_streams_from(random_number() >> 16);  // Exact in JSON, and none wraps.
  server->recall();
  server->replay(journal);
  return server;
}

void Server::replay(const Journal& journal) {
  carry_out(gate_.replay(journal, Clock::now(), clock_name()));
  if (!gate_.coordinator().runs().empty()) log::info("back, with " + status());
}

void Server::recall() {
  if (!history_) return;
  history_->start([this](RunRecord record) { gate_.remember(std::move(record)); });
  gate_.keep_past();
}

void Server::keep_ended() {
  for (EndedRun& ended : gate_.take_ended()) history_->put(finished_record(std::move(ended)));
}

// Another daemon may have taken over while we stood still: whatever comes in is no longer for us.
bool Server::may_decide() const { return !log_ || log_->may_decide(Clock::now()); }

void Server::accept(const std::shared_ptr<Link>& link) {
  const LinkId id = next_link_++;
  links_[id].link = link;
  silent_.emplace_back(Clock::now() + options_.hello_timeout, id);
  std::erase_if(strangers_, [&](Stranger& stranger) {
    const bool is_nodes = stranger.peer == link->peer_address();
    if (is_nodes) store_->send(std::move(stranger.fd));
    return is_nodes;
  });
  arm();
  log::debug("a connection from " + link->peer_address(), {.peer = link->peer_address()});
  link->start({
      .on_message =
          [this, id, from = link->peer_address()](const std::string& body) {
            if (log::debugs()) log::debug("from " + std::to_string(id) + " " + body);
            links_.at(id).has_sent = true;
            watch_own_time();
            if (may_decide()) carry_out(gate_.on_message(id, body, Clock::now(), from));
          },
      .on_closed =
          [this, id](const Failure& why) {
            log::debug("connection " + std::to_string(id) + " ended: " + to_string(why));
            if (why.code == Errc::kFrameTooLarge) refused_.add(Refusal::kBadMessage);
            links_.erase(id);
            watch_own_time();
            if (ending_ == Ending::kLeave) return carry_out(Gate::Work{});
            if (may_decide()) carry_out(gate_.on_closed(id, Clock::now()));
          },
  });
}

// A rank has no token, so it has to come from where a node does; behind a translation of addresses
// that is not the address which the node knows. As nodes connect anew, it may come before its own.
void Server::hand_over(AcceptedSocket client) {
  constexpr std::size_t kStrangersMax = 1024;
  const std::string peer = client.peer.to_string();
  const bool is_nodes = client.peer.is_loopback() || client.peer == client.local ||
                        std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
                          return link.second.link->peer_address() == peer;
                        });
  if (is_nodes) return store_->send(std::move(client.fd));
  if (strangers_.size() == kStrangersMax) refuse_stranger();
  strangers_.push_back({Clock::now() + kStrangerPatience, peer, std::move(client.fd)});
  arm();
}

void Server::refuse_stranger() {
  const std::string peer = std::move(strangers_.front().peer);
  strangers_.pop_front();
  refused_.add(Refusal::kWrongToken);
  const auto line = complaints_.filter(
      peer + " store", "refused " + peer + ", which wants the workers' store, but is no node",
      Clock::now());
  if (line) log::warning(*line, {.peer = peer});
}

void Server::carry_out(Gate::Work work) {
  for (LinkAction& action : work.actions) carry_out(action);
  if (!work.records.empty()) {
    const auto durable = [this] { carry_out(gate_.on_durable(Clock::now())); };
    if (log_) {
      log_->append(std::move(work.records), durable);
    } else {
      durable();
    }
  }
  if (log_ && log_->wants_snapshot()) log_->replace(gate_.coordinator().snapshot(Clock::now()));
  log_news();
  keep_ended();
  arm();
  const bool over =
      ending() ? links_.empty() : options_.end_when_over && gate_.coordinator().over();
  if (over && gate_.idle()) end();
}

void Server::end() {
  if (!on_over_) return;
  auto leave_log = [this, on_over = std::exchange(on_over_, nullptr)] {
    if (log_) return log_->leave(on_over);
    on_over();
  };
  if (history_) return history_->leave(std::move(leave_log));
  leave_log();
}

void Server::carry_out(LinkAction& action) {
  if (const auto* bridge = std::get_if<Bridge>(&action)) return join(*bridge);
  auto* send = std::get_if<Send>(&action);
  if (!send) return hang_up(std::get<Hangup>(action));
  const auto it = links_.find(send->link);
  if (it == links_.end()) return;
  if (log::debugs()) log::debug("to " + std::to_string(send->link) + " " + send->body);
  it->second.link->send(send->body);
}

// The relay's thread takes both connections: from here on they cost this loop nothing.
void Server::join(const Bridge& bridge) {
  const auto dialer = links_.find(bridge.dialer), agent = links_.find(bridge.agent);
  const bool both = dialer != links_.end() && agent != links_.end() &&
                    dialer->second.link->is_open() && agent->second.link->is_open();
  if (!both) {
    hang_up({bridge.dialer, "the other end of its stream has closed"});
    return hang_up({bridge.agent, "the other end of its stream has closed"});
  }
  relay_.join(dialer->second.link->release(), agent->second.link->release(), bridge.slot);
  links_.erase(bridge.dialer);
  links_.erase(bridge.agent);
}

void Server::hang_up(const Hangup& hangup) {
  const auto it = links_.find(hangup.link);
  if (it == links_.end()) return;
  it->second.link->close();
  if (hangup.reason.empty()) return;
  const std::string& peer = it->second.link->peer_address();
  const auto line = complaints_.filter(peer + " " + hangup.reason,
                                       "hung up on " + peer + ": " + hangup.reason, Clock::now());
  if (line) log::warning(*line, {.peer = peer});
}

void Server::log_news() {
  for (const News& news : gate_.take_news()) {
    const std::string what = "run " + news.run_id + ": " + news.text;
    const std::optional<std::string> line =
        news.node.empty()
            ? about_nodes_.remark(what)
            : about_nodes_.filter(what + news.node, what + " (" + news.node + ")", Clock::now());
    const auto print = options_.log_news ? log::info : log::debug;
    if (line) print(*line, {.run = news.run_id, .node = news.node});
  }
}

// A timer that goes off too early costs less than setting it anew for each message. Set into the
// past, as by a deadline from before a restart, it would seem that we had stood still since.
void Server::arm() {
  auto due = gate_.deadline();
  if (!silent_.empty()) due = std::min(due.value_or(TimePoint::max()), silent_.front().first);
  if (!strangers_.empty()) due = std::min(due.value_or(TimePoint::max()), strangers_.front().until);
  if (!due || catching_up_ || (armed_ && timer_.expiry() <= *due)) return;
  armed_ = true;
  wait_until(std::max(*due, Clock::now()));
}

void Server::wait_until(TimePoint when) {
  timer_.expires_at(when);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) tick();
  });
}

// Called before any message is handled: if a timer is late, we stood still, not the nodes, and what
// has arrived meanwhile is read before a node counts as silent.
void Server::watch_own_time() {
  if (!armed_ || ending_ == Ending::kLeave) return;
  const auto late = std::chrono::duration_cast<Milliseconds>(Clock::now() - timer_.expiry());
  if (late <= kTickLateMax) return;
  const bool again = std::exchange(catching_up_, true);
  wait_until(Clock::now() + (again ? Milliseconds(0) : kTickLateMax));  // Not for ever.
  if (late < kStandstillMin || ending() || !may_decide()) return;
  log::debug("stood still for " + std::to_string(late.count()) + " ms");
  carry_out(gate_.on_standstill(late, Clock::now()));
}

void Server::tick() {
  watch_own_time();
  if (Clock::now() < timer_.expiry()) return;  // It was set anew while this was on its way.
  // Heartbeats that are already here count before a node is declared silent.
  boost::asio::post(io_, [this] { check_links(); });
}

void Server::check_links() {
  armed_ = catching_up_ = false;
  // A daemon that no longer reads declares no node silent.
  if (ending_ == Ending::kLeave) return;
  hang_up_on_the_silent();
  while (!strangers_.empty() && strangers_.front().until <= Clock::now()) refuse_stranger();
  if (!may_decide()) return;
  for (const LinkId id : gate_.quiet(Clock::now())) {
    const auto it = links_.find(id);
    const auto kernel = it == links_.end() ? std::nullopt : it->second.link->peer_kernel();
    if (!kernel) continue;
    const TimePoint now = Clock::now();
    carry_out(gate_.on_reach(id, {now - kernel->silent_for, kernel->round_trip}, now));
  }
  carry_out(gate_.on_tick(Clock::now()));
}

void Server::hang_up_on_the_silent() {
  for (; !silent_.empty() && silent_.front().first <= Clock::now(); silent_.pop_front()) {
    const LinkId id = silent_.front().second;
    const auto it = links_.find(id);
    if (it == links_.end() || it->second.has_sent) continue;
    refused_.add(Refusal::kNoHello);
    const auto limit = std::to_string(options_.hello_timeout.count());
    hang_up({id, "it sent nothing within " + limit + " ms"});
  }
}

std::string Server::status() const {
  std::string text;
  for (const auto& [run_id, run] : gate_.coordinator().runs()) {
    text += (text.empty() ? "" : "; ") + ("run " + run_id + ": " + run.describe());
  }
  return text.empty() ? "no run" : text;
}

std::optional<std::string> Server::trouble() const { return log_ ? log_->trouble() : std::nullopt; }

void Server::shut_down(int signal) {
  ending_ = Ending::kShutDown;
  if (gate_.stalled() || trouble() || !may_decide()) {
    // What cannot be recorded is not decided: the runs go on, for the next daemon.
    log::warning("ending without ending the runs: that cannot be recorded");
    return end();
  }
  carry_out(gate_.on_shutdown(signal, Clock::now()));
}

void Server::leave(bool for_good) {
  ending_ = Ending::kLeave;
  if (for_good) {
    for (LinkAction& action : gate_.coordinator().farewell()) carry_out(action);
  }
  listener_->close();
  for (const auto& [id, linked] : links_) linked.link->close();
  if (links_.empty() || !gate_.idle()) end();  // What is not durable yet was not decided.
}

}  // namespace ddprun::rendezvous
