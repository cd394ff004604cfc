#include "rendezvous/daemon/service.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/exit_status.h"
#include "common/system/secrets.h"
#include "common/system/signals.h"
#include "common/text/words.h"
#include "rendezvous/daemon/metrics_page.h"
#include "rendezvous/daemon/server.h"
#include "rendezvous/etcd/etcd_history.h"
#include "rendezvous/etcd/etcd_log.h"
#include "rendezvous/journal/file_log.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Milliseconds kProbeInterval{500};
constexpr Milliseconds kLagMax{1'000};  // Beyond, heartbeats are about to be missed.

// The watchdog wants a message at least twice in its time.
Milliseconds probe_interval(const ServiceNotifier& notifier) {
  if (!notifier.watchdog()) return kProbeInterval;
  return std::clamp(*notifier.watchdog() / 3, Milliseconds(1), kProbeInterval);
}

std::string own_host_name() {
  boost::system::error_code ignored;
  return boost::asio::ip::host_name(ignored);
}

}  // namespace

Operations::Operations(boost::asio::io_context& io, const Server& server)
    : server_(server),
      notifier_(ServiceNotifier::from_environment()),
      pages_{.complaint = [this] { return complaint(); },
             .status = [this] { return server_.coordinator().status(Clock::now()); },
             .metrics = [this] { return metrics(); },
             .events = [this](std::int64_t after) { return events(after); },
             .account =
                 [this](const std::string& run) {
                   return server_.coordinator().account(run, Clock::now());
                 },
             .live = live_page(),
             .key = {}},
      probe_(io, probe_interval(notifier_), [this] {
        if (notifier_.watchdog()) notifier_.notify("WATCHDOG=1");
      }) {}

Result<std::unique_ptr<Operations>> Operations::open(boost::asio::io_context& io,
                                                     const Server& server,
                                                     std::optional<HttpOptions> http,
                                                     const std::string& token) {
  std::unique_ptr<Operations> operations(new Operations(io, server));
  if (!http) return operations;
  // On loopback a browser of this machine needs no key, so that a page from elsewhere that calls
  // itself a name of ours must not get through it.
  if (is_loopback(http->address)) {
    http->serves = [machine = own_host_name()](std::string_view host) {
      return is_own_host(host, machine);
    };
  } else {
    operations->pages_.key = rendezvous::page_key(token);
  }
  auto opened = HttpServer::open(
      io, std::move(*http),
      [pages = &operations->pages_](std::string_view method, std::string_view target) {
        return pages->answer(method, target);
      });
  if (!opened) return opened.error();
  operations->http_ = std::move(*opened);
  return operations;
}

std::optional<std::uint16_t> Operations::http_port() const {
  if (!http_) return std::nullopt;
  return http_->port();
}

void Operations::notify_ready() const {
  notifier_.notify("READY=1\nSTATUS=listening on port " + std::to_string(server_.port()));
}

void Operations::notify_stopping() const { notifier_.notify("STOPPING=1"); }

std::string Operations::complaint() const {
  if (server_.ending()) return "this daemon is about to end";
  if (const auto trouble = server_.trouble()) return *trouble;
  if (probe_.last_lag() > kLagMax) {
    const auto late = std::chrono::duration_cast<Milliseconds>(probe_.last_lag());
    return "the event loop was late by " + std::to_string(late.count()) + " ms";
  }
  return "";
}

std::string Operations::metrics() const {
  Measurement measured;
  measured.status = server_.coordinator().status(Clock::now());
  measured.counters = server_.coordinator().counters();
  measured.sync = server_.coordinator().sync();
  for (const auto& [run_id, ledger] : server_.coordinator().ledgers()) {
    if (!ledger.empty()) measured.ledgers[run_id] = ledger.totals(Clock::now());
    for (const auto& [node, use] : ledger.memory(Clock::now())) {
      MemoryUse& all = measured.memory[run_id];
      all.used += use.used;
      all.behind = std::max(all.behind, use.behind);  // No copy is less than any.
    }
    for (const RunLedger::Row& row : ledger.rows(Clock::now())) {
      constexpr int kRanksMax = 256;  // A series each.
      const int rank = row.times.rank;
      const bool is_counted = rank >= 0 && rank < kRanksMax;
      const bool has_shards = !row.gone_at && is_counted && row.times.shards > 0;
      if (has_shards) measured.shards[run_id][rank] = row.times.shards;
    }
  }
  measured.refused = measured.counters.refused;
  measured.refused += server_.listener().refused();
  measured.refused += server_.refused();
  measured.connections = server_.listener().link_count();
  measured.handshakes = server_.listener().handshake_count();
  measured.http_connections = http_->connection_count();
  measured.relayed_streams = server_.coordinator().relays().joined();
  measured.relayed_bytes = server_.relay().bytes();
  measured.has_journal = server_.has_journal();
  measured.lag = probe_.counts();
  measured.process = read_process_facts();
  return metrics_text(measured);
}

std::string Operations::events(std::int64_t after) const {
  nlohmann::json list = nlohmann::json::array();
  for (const Coordinator::Happening& one : server_.coordinator().happenings()) {
    if (one.number <= after) continue;
    list.push_back({{"number", one.number},
                    {"at_s", one.run_s},
                    {"run", one.news.run_id},
                    {"node", one.news.node},
                    {"level", one.news.is_trouble ? "warning" : "info"},
                    {"text", one.news.text}});
  }
  return list.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

namespace {

Result<Memory> open_memory(boost::asio::io_context& io, const DaemonOptions& options) {
  if (options.state_dir.empty()) return Memory{};
  auto log = FileLog::open(io, {.folder = options.state_dir, .sync = options.journal_sync});
  if (!log) return log.error();
  Journal journal = (*log)->take_journal();
  Memory memory{std::move(*log), std::move(journal)};
  // Of a daemon that a launcher has started, the launcher keeps a record.
  if (!options.end_when_over) {
    memory.history =
        std::make_unique<FolderHistory>(options.state_dir + "/history", options.journal_sync);
  }
  return memory;
}

std::optional<HttpOptions> http_options(const DaemonOptions& options) {
  if (options.http_port < 0) return std::nullopt;
  HttpOptions http;
  http.address = options.http_address;
  http.port = static_cast<std::uint16_t>(options.http_port);
  return http;
}

ServerOptions server_options(const DaemonOptions& options, std::string token) {
  ServerOptions server;
  server.listen.address = options.address;
  server.listen.port = static_cast<std::uint16_t>(options.port);
  server.listen.listening_fd = options.listen_fd;
  server.store_fd = options.store_fd;
  server.listen.token = std::move(token);
  server.end_when_over = options.end_when_over;
  server.only_run = options.only_run;
  server.log_news = !options.end_when_over;  // Else a launcher speaks to the user.
  return server;
}

// Opens the port once this daemon knows what was before it; ends it if that fails.
class Service {
 public:
  Service(const DaemonOptions& options, std::string token)
      : options_(options), server_options_(server_options(options, std::move(token))) {}

  int run() {
    if (const auto held = hold_signals(); !held) return fail(to_string(held.error())), kExitFailed;
    if (options_.etcd.empty()) {
      auto memory = open_memory(io_, options_);
      if (!memory) return fail(memory.error().context), kExitFailed;
      begin(std::move(*memory));
    } else if (const auto campaigning = campaign(); !campaigning) {
      return fail(campaigning.error().context), kExitUsage;
    }
    io_.run();
    return status_;
  }

 private:
  void begin(Memory memory) {
    auto server = Server::open(io_, server_options_, std::move(memory), [this] { io_.stop(); });
    if (!server) return fail(to_string(server.error()));
    server_ = std::move(*server);
    auto operations =
        Operations::open(io_, *server_, http_options(options_), server_options_.listen.token);
    if (!operations) return fail(to_string(operations.error()));
    operations_ = std::move(*operations);
    if (options_.listen_fd < 0) {
      log::info("listening on " + options_.address + ":" + std::to_string(server_->port()));
    }
    auto c10d = open_c10d_port(io_, options_.c10d);
    if (!c10d) return fail(to_string(c10d.error()));
    c10d_ = std::move(*c10d);
    if (const auto port = operations_->http_port()) {
      const std::string& key = operations_->page_key();
      log::info("pages for operators on http://" + options_.http_address + ":" +
                std::to_string(*port) + (key.empty() ? "" : "/?key=" + key));
    }
    operations_->notify_ready();
  }

  Result<void> campaign() {
    auto endpoints = parse_etcd_endpoints(options_.etcd);
    if (!endpoints) return endpoints.error();
    auto trust = make_etcd_trust({options_.etcd_ca, options_.etcd_cert, options_.etcd_key});
    if (!trust) return trust.error();
    EtcdAccess access{std::move(*trust), options_.etcd_user, options_.etcd_password};
    warn_of_open_password(*endpoints);
    EtcdOptions etcd{std::move(*endpoints), std::move(access), options_.etcd_prefix,
                     std::chrono::seconds(options_.etcd_lease), own_name()};
    auto log = std::make_unique<EtcdLog>(io_, etcd);
    EtcdLog& campaigner = *log;
    candidate_ = std::move(log);
    const auto lead = [this, etcd, &campaigner](Journal journal) {
      log::info("this daemon leads now");
      auto history = std::make_unique<EtcdHistory>(
          io_, etcd, EtcdHistory::Leader{campaigner.leader_key(), campaigner.term()});
      begin({std::move(candidate_), std::move(journal), std::move(history)});
    };
    campaigner.start(
        {.on_lead = lead, .on_over = [this](const std::string& why) { begin_anew(why); }});
    return {};
  }

  // No state of a former leader may be used any more: all of it goes, connections too, and the same
  // program stands by from now on.
  void begin_anew(const std::string& why) {
    if (!server_) return fail(why);
    log::warning("leads no more: " + why + "; standing by");
    if (const auto left = leave_secrets(); !left) return fail(to_string(left.error()));
    ::execv("/proc/self/exe", options_.argv);
    fail(to_string(errno_failure("starting again")));
  }

  // What came by the environment is not there any more.
  Result<void> leave_secrets() const {
    if (options_.etcd_password_from_environment) {
      const auto left = leave_to_next_program(kEtcdPasswordFileVariable, options_.etcd_password);
      if (!left) return left.error();
    }
    if (!options_.token_from_environment) return {};
    return leave_to_next_program(kTokenFileVariable, server_options_.listen.token);
  }

  void warn_of_open_password(const std::vector<EtcdEndpoint>& endpoints) const {
    if (options_.etcd_user.empty()) return;
    for (const EtcdEndpoint& one : endpoints) {
      const bool stays_here =
          one.host == "localhost" || one.host == "127.0.0.1" || one.host == "::1";
      if (one.tls || stays_here) continue;
      return log::warning("etcd's password goes to " + one.host + " unencrypted: give https://");
    }
  }

  std::string own_name() const {
    return options_.address + ":" + std::to_string(options_.port) + " of " +
           boost::asio::ip::host_name() + ", process " + std::to_string(::getpid());
  }

  void fail(const std::string& why) {
    log::error(why);
    status_ = kExitFailed;
    io_.stop();
  }

  Result<void> hold_signals() {
    auto held = SentSignals::hold({SIGTERM, SIGINT, SIGUSR1, SIGUSR2, kLeaveSignal});
    if (!held) return held.error();
    sent_ = std::move(*held);
    signals_.assign(sent_.watched());
    await_signal();
    return {};
  }

  void await_signal() {
    using boost::asio::posix::stream_descriptor;
    signals_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
      if (ec) return;
      await_signal();
      for (SentSignal sent = sent_.next(); sent.signal != 0; sent = sent_.next()) take(sent);
    });
  }

  // A daemon that a launcher has started takes orders from no other process: what a batch system or
  // a service manager sends to a whole step or group is meant for the launcher.
  void take(const SentSignal& sent) {
    const bool launched = options_.end_when_over;
    if (launched && sent.sender != ::getppid()) return;
    if (launched && sent.signal == kLeaveSignal) return leave();
    if (sent.signal == SIGTERM || sent.signal == SIGINT) end(sent.signal);
  }

  // The launcher's node has left the run, which goes on elsewhere.
  void leave() {
    if (!server_) return io_.stop();
    operations_->notify_stopping();
    server_->leave(/*for_good=*/true);
  }

  void end(int signal) {
    if (!server_) return io_.stop();  // Another daemon leads.
    operations_->notify_stopping();
    if (!server_->has_journal() || options_.end_runs_on_exit) {
      // If a launcher has started this daemon, the launcher has printed why.
      const std::string message = "told to end; ending the runs";
      options_.end_when_over ? log::debug(message) : log::info(message);
      server_->shut_down(signal);
    } else {
      log::info("told to end; the runs continue and wait for the next daemon");
      server_->leave();
    }
  }

  const DaemonOptions& options_;
  const ServerOptions server_options_;
  boost::asio::io_context io_{1};
  SentSignals sent_;
  boost::asio::posix::stream_descriptor signals_{io_};  // Readable while sent_ has one.
  std::unique_ptr<RecordLog> candidate_;                // Until it leads.
  std::unique_ptr<Server> server_;
  std::unique_ptr<Operations> operations_;
  std::unique_ptr<StoreServer> c10d_;  // None, unless requested.
  int status_ = kExitOk;
};

}  // namespace

int serve(const DaemonOptions& options, std::string token) {
  return Service(options, std::move(token)).run();
}

}  // namespace ddprun::rendezvous
