// The daemon's side of the control link: strangers, crowds, limits.

#include "rendezvous/net/listener.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "tests/support/link_fixture.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using namespace test_links;  // NOLINT(google-build-using-namespace)
using test::RawClient;

TEST_CASE("Listener: silent and babbling connections cost the others nothing", "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshake_timeout = 200ms});
  std::deque<RawClient> silent;
  for (int i = 0; i < 50; ++i) silent.emplace_back(f.listener->port());
  std::mt19937 random(5);
  std::deque<RawClient> babbling;
  for (int i = 0; i < 50; ++i) {
    std::string garbage(1 + random() % 3000, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    if (i % 2) garbage[0] = 0x16;  // Looks like TLS at first sight.
    babbling.emplace_back(f.listener->port()).send(garbage);
  }
  End& client = f.connect();
  client.link->send("hello");
  CHECK(run_until(f.io, [&] { return f.server().messages.size() == 1; }));
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == 0; }));
  CHECK(f.listener->refused_count() == 100);
  CHECK(f.servers.size() == 1);
}

TEST_CASE("Listener: without a token too, a connection that never speaks is closed", "[link]") {
  Fixture f(ListenOptions{.handshake_timeout = 50ms});
  RawClient silent(f.listener->port());
  CHECK(run_until(f.io, [&] {
    silent.poll();
    return silent.closed;
  }));
  CHECK(f.servers.empty());
}

TEST_CASE("Listener: connections beyond the limit are closed, and room is made again", "[link]") {
  Fixture f(ListenOptions{.token = kToken, .connections_max = 2});
  f.connect();
  End& second = f.connect();
  CHECK(run_until(f.io, [&] { return f.listener->link_count() == 2; }));
  CHECK(f.try_connect(f.connect_options).has_error());
  second.link->close();
  CHECK(run_until(f.io, [&] { return f.listener->link_count() == 1; }));
  CHECK(f.try_connect(f.connect_options).has_value());
}

TEST_CASE("Listener: the oldest silent connection gives way to a new one", "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshakes_max = 3});
  std::deque<RawClient> silent;
  for (int i = 0; i < 3; ++i) silent.emplace_back(f.listener->port());
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == 3; }));
  CHECK(f.try_connect(f.connect_options).has_value());
  silent.front().poll();
  CHECK(silent.front().closed);
  silent.back().poll();
  CHECK_FALSE(silent.back().closed);
}

// The whole first message of a client, so that its handshake begins; what follows is missing.
std::string client_hello() {
  const auto context = make_tls_context(TlsRole::kClient, kToken);
  SslPtr ssl(SSL_new(context->get()));
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(ssl.get());
  SSL_do_handshake(ssl.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

TEST_CASE("Listener: handshakes that do not get on keep the next one waiting only for a while",
          "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshakes_at_once = 2, .handshake_patience = 20ms});
  std::deque<RawClient> halting;
  for (int i = 0; i < 10; ++i) halting.emplace_back(f.listener->port()).send(client_hello());
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == 10; }));
  f.connect();
  CHECK(run_until(f.io, [&] { return f.servers.size() == 1; }));
  CHECK(f.listener->handshake_count() == 10);
}

TEST_CASE("Listener: half a first message takes nobody's turn", "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshakes_at_once = 1, .handshake_patience = 1h});
  const std::string hello = client_hello();
  std::deque<RawClient> halves;
  for (std::size_t bytes = 1; bytes < hello.size(); bytes += 20) {
    halves.emplace_back(f.listener->port()).send(hello.substr(0, bytes));
  }
  REQUIRE(run_until(f.io, [&] { return f.listener->handshake_count() == halves.size(); }));
  f.connect();
  CHECK(run_until(f.io, [&] { return f.servers.size() == 1; }));

  // One that hangs up is let go, and one that goes on in small pieces is served all the same.
  halves.pop_back();
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == halves.size(); }));
  RawClient& slow = halves.front();
  for (const char byte : hello.substr(1)) {
    slow.send(std::string(1, byte));
    f.io.poll();
  }
  CHECK(run_until(f.io, [&] {
    slow.poll();
    return !slow.received.empty();
  }));
}

TEST_CASE("Listener: close frees the port, links live on", "[link]") {
  Fixture f;
  End& client = f.connect();
  f.server();
  RawClient half(f.listener->port());
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == 1; }));
  f.listener->close();
  CHECK(f.try_connect(f.connect_options).has_error());
  client.link->send("still here");
  CHECK(run_until(f.io, [&] { return f.server().messages.size() == 1; }));
  half.poll();
  CHECK(half.closed);
  ListenOptions again{.address = "127.0.0.1", .port = f.connect_options.port};
  CHECK(Listener::open(f.io, again, [](auto) {}).has_value());
}

// A thread that may not log waits for connections, too.
TEST_CASE("AcceptLoop: a shortage of descriptors is reported to its owner", "[link]") {
  boost::asio::io_context io;
  int accepted = 0;
  std::vector<std::string> complaints;
  UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  const std::uint16_t port = local_port(listening.get());
  const auto loop = AcceptLoop::start(
      io, std::move(listening), [&](AcceptedSocket) { ++accepted; },
      [&](const std::string& complaint) { complaints.push_back(complaint); });
  RawClient client(port);
  rlimit usual{};
  ::getrlimit(RLIMIT_NOFILE, &usual);
  const rlimit none{.rlim_cur = 0, .rlim_max = usual.rlim_max};
  const bool limited = ::setrlimit(RLIMIT_NOFILE, &none) == 0;
  const bool reported = run_until(io, [&] { return !complaints.empty(); });
  ::setrlimit(RLIMIT_NOFILE, &usual);
  CHECK(limited);
  REQUIRE(reported);
  CHECK_THAT(complaints.front(),
             Catch::EndsWith("Too many open files; retrying until this is over"));
  CHECK(run_until(io, [&] { return accepted == 1; }));
  CHECK(complaints.size() == 1);
}

TEST_CASE("Listener: 1,000 agents connect at once", "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshake_timeout = 120s});
  int connected = 0;
  std::vector<std::shared_ptr<void>> handles;
  f.connect_options.timeout = 60s;
  for (int i = 0; i < 1000; ++i) {
    handles.push_back(async_connect(f.io, f.connect_options, [&](auto link) {
      REQUIRE(link.has_value());
      End& end = f.clients.emplace_back(*link);
      end.link->send("hello");
      ++connected;
    }));
  }
  REQUIRE(run_until(
      f.io, [&] { return connected == 1000 && f.servers.size() == 1000; }, 120s));
  REQUIRE(run_until(f.io, [&] {
    return std::all_of(f.servers.begin(), f.servers.end(),
                       [](const End& end) { return end.messages.size() == 1; });
  }));
  for (End& server : f.servers) server.link->send("welcome");
  REQUIRE(run_until(f.io, [&] {
    return std::all_of(f.clients.begin(), f.clients.end(),
                       [](const End& end) { return end.messages.size() == 1; });
  }));
}

}  // namespace
}  // namespace ddprun::rendezvous
