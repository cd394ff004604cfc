// The HTTP listener over loopback, with clients that behave and clients that do not.

#include "rendezvous/daemon/http_server.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <limits>

#include "rendezvous/daemon/metrics_page.h"
#include "tests/support/loop.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using test::RawClient;
using test::run_until;

constexpr char kGet[] = "GET /page HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr char kGetLast[] = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

struct Fixture {
  explicit Fixture(HttpOptions options = {}) {
    server = HttpServer::open(io, std::move(options), [this](auto method, auto target) {
               requests.push_back(std::string(method) + " " + std::string(target));
               return reply;
             }).value();
  }

  // What comes back for `request` until the server hangs up.
  std::string exchange(std::string_view request) {
    RawClient client(server->port());
    client.send(request);
    return until_closed(client);
  }
  std::string until_closed(RawClient& client) {
    REQUIRE(run_until(io, [&] {
      client.poll();
      return client.closed;
    }));
    return client.received;
  }
  bool received(RawClient& client, const std::string& text) {
    return run_until(io, [&] {
      client.poll();
      return client.received.find(text) != std::string::npos;
    });
  }

  boost::asio::io_context io{1};
  HttpReply reply{200, "a page\n"};
  std::vector<std::string> requests;
  std::unique_ptr<HttpServer> server;
};

std::string status_of(const std::string& answer) { return answer.substr(0, answer.find('\r')); }

TEST_CASE("HTTP: a page is answered, and HEAD without its body", "[http]") {
  Fixture f;
  const std::string answer = f.exchange(kGetLast);
  CHECK(status_of(answer) == "HTTP/1.1 200 OK");
  CHECK(answer.find("Content-Length: 7\r\n") != std::string::npos);
  CHECK(answer.ends_with("\r\n\r\na page\n"));
  const std::string head = f.exchange("HEAD /x HTTP/1.1\r\nConnection: close\r\n\r\n");
  CHECK(head.find("Content-Length: 7\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(f.requests == std::vector<std::string>{"GET /last", "GET /x"});
  CHECK(f.exchange("GET / HTTP/1.0\r\n\r\n").ends_with("a page\n"));
}

TEST_CASE("HTTP: the names of this machine are known, with and without a port", "[http]") {
  for (const char* own :
       {"127.0.0.1", "127.0.0.1:29480", "10.1.2.3:1", "[::1]", "[::1]:29480", "[fe80::1]:5",
        "localhost", "localhost:8080", "LocalHost.", "node1.cluster.example", "Node1:29480"}) {
    CAPTURE(own);
    CHECK(is_own_host(own, "node1.cluster.example"));
  }
  for (const char* other :
       {"evil.example", "evil.example:29480", "127.0.0.1.evil.example", "127.0.0.1:80@evil.example",
        "127.0.0.1:evil", "[::1]evil", "[evil]", "[::1", "::1", "", ":29480", ".", "127.1",
        "0x7f.1", "localhost.evil.example", "node1.evil.example",
        "node1.cluster.example.evil.example", "xlocalhost", "node11"}) {
    CAPTURE(other);
    CHECK_FALSE(is_own_host(other, "node1.cluster.example"));
  }
  CHECK_FALSE(is_own_host("evil.example", ""));
  CHECK_FALSE(is_own_host("", ""));
}

TEST_CASE("HTTP: a request for another machine is refused before it is a question", "[http]") {
  HttpOptions options;
  options.serves = [](std::string_view host) { return host == "here:1"; };
  Fixture f(options);
  const auto answer = [&](const std::string& hosts) {
    return status_of(f.exchange("GET /x HTTP/1.1\r\n" + hosts + "Connection: close\r\n\r\n"));
  };
  CHECK(answer("Host: here:1\r\n") == "HTTP/1.1 200 OK");
  CHECK(answer("") == "HTTP/1.1 200 OK");
  CHECK(f.requests.size() == 2);
  CHECK(answer("Host: evil.example\r\n") == "HTTP/1.1 403 Forbidden");
  CHECK(answer("Host: here:1\r\nHost: evil.example\r\n") == "HTTP/1.1 403 Forbidden");
  CHECK(answer("hOST:\r\n") == "HTTP/1.1 403 Forbidden");
  CHECK(f.requests.size() == 2);
}

TEST_CASE("HTTP: requests sent at once are answered in order on one connection", "[http]") {
  Fixture f;
  const std::string answer = f.exchange(std::string(kGet) + kGet + kGetLast);
  CHECK(f.requests == std::vector<std::string>{"GET /page", "GET /page", "GET /last"});
  std::size_t pages = 0;
  for (std::size_t at = 0; (at = answer.find("a page\n", at)) != std::string::npos; ++at) ++pages;
  CHECK(pages == 3);
}

TEST_CASE("HTTP: a connection is closed after so many requests", "[http]") {
  HttpOptions options;
  options.requests_max = 2;
  Fixture f(options);
  CHECK(f.exchange(std::string(kGet) + kGet + kGet).find("Connection: close") != std::string::npos);
  CHECK(f.requests.size() == 2);
}

TEST_CASE("HTTP: another method is the pages' business and is told what is allowed", "[http]") {
  Fixture f;
  f.reply = {405, "no\n"};
  const std::string answer =
      f.exchange("POST /x HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
  CHECK(status_of(answer) == "HTTP/1.1 405 Method Not Allowed");
  CHECK(answer.find("Allow: GET, HEAD\r\n") != std::string::npos);
  CHECK(f.requests == std::vector<std::string>{"POST /x"});
}

TEST_CASE("HTTP: what is too large or no HTTP at all gets a sentence and a hang-up", "[http]") {
  Fixture f;
  const std::string giant = "GET / HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n";
  const std::string fields = [] {
    std::string text = "GET / HTTP/1.1\r\n";
    for (int i = 0; i < 5'000; ++i) text += "X" + std::to_string(i) + ": y\r\n";
    return text + "\r\n";
  }();
  CHECK(status_of(f.exchange(giant)).starts_with("HTTP/1.1 431 "));
  CHECK(status_of(f.exchange(fields)).starts_with("HTTP/1.1 431 "));
  CHECK(status_of(f.exchange("GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"))
            .starts_with("HTTP/1.1 413 "));
  for (const char* babble :
       {"\x16\x03\x01\x02\x03\r\n\r\n", "hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nbad header\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"}) {
    CAPTURE(babble);
    CHECK(status_of(f.exchange(babble)) == "HTTP/1.1 400 Bad Request");
  }
  CHECK(f.requests.empty());
}

TEST_CASE("HTTP: who is slow, silent or goes away is cut off, the others are served", "[http]") {
  HttpOptions options;
  options.read_timeout = 150ms;
  Fixture f(options);
  RawClient silent(f.server->port()), slow(f.server->port());
  slow.send("GET / HTT");
  { RawClient gone(f.server->port()); }
  CHECK(f.exchange(kGetLast).ends_with("a page\n"));
  // A byte now and then buys no time.
  const auto trickle = [&] {
    slow.send("P", /*wait=*/false);
    slow.poll();
    silent.poll();
    return slow.closed && silent.closed;
  };
  CHECK(run_until(f.io, trickle));
  CHECK(run_until(f.io, [&] { return f.server->connection_count() == 0; }));
}

TEST_CASE("HTTP: who asks and does not read is cut off", "[http]") {
  HttpOptions options;
  options.write_timeout = 100ms;
  Fixture f(options);
  f.reply.body = std::string(std::size_t{32} << 20, 'x');
  RawClient client(f.server->port());
  client.send(kGet);
  CHECK(run_until(f.io, [&] { return !f.requests.empty(); }));
  CHECK(run_until(f.io, [&] { return f.server->connection_count() == 0; }));
}

TEST_CASE("HTTP: beyond the limit the connection that was idle for longest gives way", "[http]") {
  HttpOptions options;
  options.connections_max = 2;
  Fixture f(options);
  std::deque<RawClient> clients;
  for (std::size_t i = 0; i < 2; ++i) {
    clients.emplace_back(f.server->port());
    REQUIRE(run_until(f.io, [&] { return f.server->connection_count() == i + 1; }));
  }
  clients[0].send(kGet);  // So that the second one is idle for longer.
  REQUIRE(f.received(clients[0], "a page\n"));
  CHECK(f.exchange(kGetLast).ends_with("a page\n"));
  CHECK(f.until_closed(clients[1]).empty());
  clients[0].send(kGetLast);
  CHECK(f.until_closed(clients[0]).ends_with("a page\n"));
}

TEST_CASE("HTTP: who is being answered gives way to nobody", "[http]") {
  HttpOptions options;
  options.connections_max = 1;
  Fixture f(options);
  f.reply.body = std::string(32 << 20, 'x');  // More than the kernel takes at once.
  RawClient slow(f.server->port());
  slow.send(kGetLast);
  REQUIRE(run_until(f.io, [&] { return f.requests.size() == 1; }));
  RawClient second(f.server->port());
  CHECK(f.until_closed(second).empty());
  CHECK(f.until_closed(slow).ends_with("xxx"));
}

TEST_CASE("HTTP: the server's end frees the port and lets answers out", "[http]") {
  Fixture f;
  RawClient client(f.server->port());
  client.send(kGet);
  CHECK(f.received(client, "a page\n"));
  const std::uint16_t port = f.server->port();
  f.server.reset();
  HttpOptions again;
  again.port = port;
  CHECK(HttpServer::open(f.io, again, [](auto, auto) { return HttpReply{}; }).has_value());
}

TEST_CASE("Loop probe: lags fall into their buckets, and the loop is asked again and again",
          "[http]") {
  LagCounts lags;
  lags.add(-1ms);  // A timer that came early.
  lags.add(1ms);
  lags.add(2ms);
  lags.add(10s);
  CHECK(lags.turns == decltype(lags.turns){2, 1, 0, 0, 0, 0, 1});
  CHECK(lags.sum_seconds == Approx(10.003));
  boost::asio::io_context io;
  int beats = 0;
  const LoopProbe probe(io, 1ms, [&] { ++beats; });
  CHECK(run_until(io, [&] { return beats == 3; }));
}

TEST_CASE("Metrics: numbers stand under their names and labels", "[metrics]") {
  Measurement measured;
  measured.status.runs.push_back({.run_id = "x", .state = "running", .world_size = 4});
  measured.status.runs.back().nodes.resize(2, {.phase = "seated"});
  measured.counters.messages[AgentMessage(Join{}).index()] = 3;
  measured.counters.nodes_lost[static_cast<std::size_t>(LostBy::kSilent)] = 5;
  measured.refused.add(Refusal::kWrongToken);
  measured.lag.add(2ms);
  const std::string text = metrics_text(measured);
  for (const char* line :
       {"ddprun_runs{state=\"running\"} 1\n", "ddprun_runs{state=\"ended\"} 0\n",
        "ddprun_nodes{phase=\"seated\"} 2\n", "ddprun_workers 4\n",
        "ddprun_messages_total{kind=\"join\"} 3\n",
        "ddprun_nodes_lost_total{reason=\"silent\"} 5\n",
        "ddprun_connections_refused_total{reason=\"wrong_token\"} 1\n",
        "ddprun_loop_lag_seconds_bucket{le=\"0.005\"} 1\n", "ddprun_loop_lag_seconds_count 1\n"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
  CHECK(text.find("journal") == std::string::npos);
  measured.has_journal = true;
  CHECK(metrics_text(measured).find("ddprun_journal_records_total 0\n") != std::string::npos);
}

TEST_CASE("Metrics: what sync timers counted stands under its run, late ranks under theirs",
          "[metrics]") {
  Measurement measured;
  CHECK(metrics_text(measured).find("ddprun_sync") == std::string::npos);
  SyncTotals& totals = measured.sync["a \"b\""];
  totals.add({.sums = {{"steps", 64}, {"outside_ns", 1'500'000'000}, {"exposed_ns", 250'000'000}}});
  totals.add({{{"steps", 1}}, {{3, {{"steps", 2}, {"forward_ns", 600'000'000}}}}});
  totals.add({{{"busbw", 7}}, {{3, {{"steps", 1}, {"forward_ns", 100'000'000}}}}});
  totals.add({});  // Reports no bandwidth.
  const std::string text = metrics_text(measured);
  const std::string run = R"(run="a \"b\"")";
  for (const std::string& line :
       {"steps_total{" + run + "} 65\n", "seconds_total{phase=\"outside\"," + run + "} 1.5\n",
        "seconds_total{phase=\"exposed\"," + run + "} 0.25\n",
        "late_steps_total{rank=\"3\"," + run + "} 3\n",
        "late_seconds_total{phase=\"forward\",rank=\"3\"," + run + "} 0.7\n",
        "busbw_bytes_per_second{" + run + "} 7\n"}) {
    CAPTURE(line, text);
    CHECK(text.find("\nddprun_sync_" + line) != std::string::npos);
  }
  CHECK(text.find("phase=\"outside\",rank") == std::string::npos);
}

TEST_CASE("Metrics: text, numbers and histograms in Prometheus' format", "[metrics]") {
  MetricsText out;
  CHECK(out.text().empty());
  const MetricsText::Family gauge{"g", "a \\ and\na line"};
  out.add(gauge, {}, 1e6);
  out.add_histogram({"h", "", MetricsText::Type::kHistogram}, std::array{0.5, 2.0},
                    std::array<std::uint64_t, 3>{3, 2, 1}, 7.25);
  out.add(gauge, {{"b", "x\ny"}, {"a", "\\"}}, -0.1);
  out.add(gauge, {{"c", ""}}, std::numeric_limits<double>::infinity());
  CHECK(out.text() ==
        "# HELP g a \\\\ and\\na line\n# TYPE g gauge\ng 1000000\n"
        "g{a=\"\\\\\",b=\"x\\ny\"} -0.1\ng{c=\"\"} +Inf\n"
        "# HELP h \n# TYPE h histogram\nh_bucket{le=\"0.5\"} 3\nh_bucket{le=\"2\"} 5\n"
        "h_bucket{le=\"+Inf\"} 6\nh_sum 7.25\nh_count 6\n");
}

TEST_CASE("Sync totals: ranks beyond those that have a place are summed up", "[metrics]") {
  SyncTotals totals;
  for (int turn = 0; turn < 2; ++turn) {
    for (int rank = 0; rank < 100; ++rank) totals.add({.late = {{rank, {{"steps", 1}}}}});
  }
  CHECK(totals.late().size() == SyncTotals::kLateRanksMax + 1);
  CHECK(totals.late().at(63)["steps"] == 2);
  CHECK(totals.late().at(-1)["steps"] == 2 * 36);
}

}  // namespace
}  // namespace ddprun::rendezvous
