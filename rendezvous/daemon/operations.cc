#include "rendezvous/daemon/operations.h"

#include <algorithm>
#include <boost/asio/ip/host_name.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/text/words.h"
#include "rendezvous/daemon/metrics_page.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Milliseconds kProbeInterval{500};
constexpr Milliseconds kLagMax{1'000};  // Beyond, heartbeats are about to be missed.

// The watchdog wants to hear at least twice in its time.
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
        if (notifier_.watchdog()) notifier_.say("WATCHDOG=1");
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

void Operations::say_ready() const {
  notifier_.say("READY=1\nSTATUS=listening on port " + std::to_string(server_.port()));
}

void Operations::say_stopping() const { notifier_.say("STOPPING=1"); }

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
  }
  measured.refused = measured.counters.refused;
  measured.refused += server_.listener().refused();
  measured.refused += server_.refused();
  measured.connections = server_.listener().link_count();
  measured.handshakes = server_.listener().handshake_count();
  measured.http_connections = http_->connection_count();
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

}  // namespace ddprun::rendezvous
