// The control link over loopback: async_connect on one side, the Listener on the other, both in one
// loop.

#include "rendezvous/link.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <random>

#include "rendezvous/connect.h"
#include "rendezvous/listen_socket.h"
#include "rendezvous/listener.h"
#include "tests/support/bytes.h"
#include "tests/support/loop.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::RawClient;
using test::run_until;

constexpr char kToken[] = "0123456789abcdef";

// One end of a link and what came of it.
struct End {
  explicit End(std::shared_ptr<Link> made) : link(std::move(made)) {
    link->start({[this](std::string body) {
                   if (on_message) on_message(body);
                   messages.push_back(std::move(body));
                 },
                 [this](const Failure& failure) {
                   ++closings;
                   why = failure;
                 }});
  }

  std::shared_ptr<Link> link;
  std::vector<std::string> messages;
  std::function<void(const std::string&)> on_message;
  int closings = 0;
  Failure why;
};

struct Fixture {
  explicit Fixture(ListenOptions options) {
    options.address = "127.0.0.1";
    listener = Listener::open(io, options, [this](std::shared_ptr<Link> link) {
                 servers.emplace_back(std::move(link));
               }).value();
    connect_options = {.host = "127.0.0.1", .port = listener->port(), .token = options.token};
  }
  explicit Fixture(const std::string& token = kToken) : Fixture(ListenOptions{.token = token}) {}

  Result<std::shared_ptr<Link>> try_connect(ConnectOptions options) {
    std::optional<Result<std::shared_ptr<Link>>> outcome;
    const auto handle =
        async_connect(io, std::move(options), [&](auto result) { outcome = std::move(result); });
    REQUIRE_FALSE(outcome.has_value());
    REQUIRE(run_until(io, [&] { return outcome.has_value(); }));
    return *outcome;
  }

  End& connect() { return clients.emplace_back(try_connect(connect_options).value()); }

  // Where a token is wanted, the daemon's end exists a moment after the client's; without one, only
  // once the client has spoken.
  End& server() {
    REQUIRE(run_until(io, [&] { return !servers.empty(); }));
    return servers.back();
  }

  bool closed(End& end) {
    return run_until(io, [&] { return end.closings > 0; });
  }

  boost::asio::io_context io{1};
  std::deque<End> servers, clients;
  std::unique_ptr<Listener> listener;
  ConnectOptions connect_options;
};

TEST_CASE("Link: bodies pass both ways, in order, with and without a token", "[link]") {
  for (const std::string& token : {std::string(kToken), std::string()}) {
    Fixture f(token);
    End& client = f.connect();
    client.link->send("one");
    client.link->send("");
    client.link->send("three");
    End& server = f.server();
    CHECK(run_until(f.io, [&] { return server.messages.size() == 3; }));
    CHECK(server.messages == std::vector<std::string>{"one", "", "three"});
    server.link->send("back");
    CHECK(run_until(f.io, [&] { return client.messages.size() == 1; }));
    CHECK(client.messages == std::vector<std::string>{"back"});
    CHECK(client.link->peer_address() == "127.0.0.1");
    CHECK(server.link->peer_address() == "127.0.0.1");
    CHECK(server.link->local_address() == "127.0.0.1");
  }
}

TEST_CASE("Link: the largest body passes", "[link]") {
  Fixture f;
  End& client = f.connect();
  const std::string large(kFrameBytesMax, 'x');
  for (int i = 0; i < 5; ++i) client.link->send(large);
  End& server = f.server();
  CHECK(run_until(f.io, [&] { return server.messages.size() == 5; }));
  CHECK(std::count(server.messages.begin(), server.messages.end(), large) == 5);
}

TEST_CASE("Link: answering from inside a message handler works", "[link]") {
  Fixture f;
  End& client = f.connect();
  End& server = f.server();
  server.on_message = [&](const std::string& body) { server.link->send(body + "!"); };
  client.on_message = [&](const std::string& body) {
    if (body.size() < 100) client.link->send(body);
  };
  client.link->send("x");
  CHECK(run_until(f.io, [&] { return client.messages.size() == 99; }));
}

TEST_CASE("Link: another token is refused on the client's side as kBadToken", "[link]") {
  Fixture f;
  f.connect_options.token = "wrong";
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == Errc::kBadToken);
  CHECK(link.error().context ==
        "connecting to 127.0.0.1:" + std::to_string(f.listener->port()) +
            ": it does not accept our token; give both sides the same token, "
            "or both none");
  CHECK(f.servers.empty());
  CHECK(run_until(f.io, [&] { return f.listener->refused_count() == 1; }));
}

TEST_CASE("Link: a token where none is wanted is refused as kBadToken", "[link]") {
  Fixture f("");
  f.connect_options.token = kToken;
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == Errc::kBadToken);
}

TEST_CASE("Link: no token where one is wanted closes the link with kBadToken", "[link]") {
  Fixture f;
  f.connect_options.token = "";
  End& client = f.connect();
  client.link->send("hello");
  REQUIRE(f.closed(client));
  CHECK(client.why.code == Errc::kBadToken);
  CHECK(client.why.context == "link to 127.0.0.1: it asks for a token and none was given");
  CHECK(f.servers.empty());
}

TEST_CASE("Link: a refused connection is not taken for a wrong token", "[link]") {
  Fixture f;
  f.listener->close();
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == boost::asio::error::connection_refused);
  CHECK(link.error().context ==
        "connecting to 127.0.0.1:" + std::to_string(f.connect_options.port));
}

TEST_CASE("Link: whoever accepts and says nothing is reported as silent", "[link]") {
  Fixture f;
  const UniqueFd mute = listen_socket("127.0.0.1", 0).value();
  f.connect_options.port = local_port(mute.get());
  f.connect_options.timeout = 100ms;
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == Errc::kPeerSilent);
}

TEST_CASE("Link: a host that swallows packets is reported as silent within the timeout", "[link]") {
  // A listener whose queue is full drops what comes: the nearest thing to a dead host on loopback.
  const UniqueFd full = listen_socket("127.0.0.1", 0).value();
  REQUIRE(::listen(full.get(), 0) == 0);
  const std::uint16_t port = local_port(full.get());
  std::deque<UniqueFd> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.push_back(client_socket(boost::asio::ip::make_address("127.0.0.1")).value());
    const boost::asio::ip::tcp::endpoint to(boost::asio::ip::make_address("127.0.0.1"), port);
    ::connect(fillers.back().get(), to.data(), static_cast<socklen_t>(to.size()));
  }
  Fixture f;
  f.connect_options.port = port;
  f.connect_options.timeout = 150ms;
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == Errc::kPeerSilent);
}

TEST_CASE("Link: whoever speaks something else is not taken for a daemon", "[link]") {
  Fixture f;
  const UniqueFd other = listen_socket("127.0.0.1", 0).value();
  f.connect_options.port = local_port(other.get());
  std::optional<Result<std::shared_ptr<Link>>> outcome;
  const auto handle =
      async_connect(f.io, f.connect_options, [&](auto result) { outcome = std::move(result); });
  std::optional<AcceptedSocket> accepted;
  REQUIRE(run_until(f.io, [&] {
    if (!accepted) accepted = accept_socket(other.get()).value();
    return accepted.has_value();
  }));
  const std::string greeting = "HTTP/1.1 400 Bad Request\r\n\r\n";
  REQUIRE(::send(accepted->fd.get(), greeting.data(), greeting.size(), 0) > 0);
  REQUIRE(run_until(f.io, [&] { return outcome.has_value(); }));
  REQUIRE(outcome->has_error());
  CHECK(outcome->error().code == Errc::kBadMessage);
  CHECK(outcome->error().context.ends_with("; is it a ddprun daemon?"));
}

TEST_CASE("Link: a name that cannot be resolved fails in seconds and says so", "[link]") {
  Fixture f;
  f.connect_options.host = "no-such-host.invalid";
  f.connect_options.timeout = 3s;
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == Errc::kNotFound);
  CHECK(link.error().context.starts_with("cannot resolve host 'no-such-host.invalid' ("));
}

TEST_CASE("Link: a name is resolved, and its addresses are tried in turn", "[link]") {
  Fixture f;  // Listens on 127.0.0.1 only; localhost may be ::1 first.
  f.connect_options.host = "localhost";
  CHECK(f.try_connect(f.connect_options).has_value());
}

TEST_CASE("Link: letting go of the handle cancels at every stage", "[link]") {
  Fixture f;
  for (const char* host : {"127.0.0.1", "localhost", "no-such-host.invalid"}) {
    for (int turns = 0; turns < 8; ++turns) {
      f.connect_options.host = host;
      bool called = false;
      auto handle = async_connect(f.io, f.connect_options, [&](auto) { called = true; });
      for (int i = 0; i < turns && !called; ++i) {
        f.io.restart();
        f.io.run_one_for(2ms);
      }
      const bool before = called;
      handle.reset();
      for (int i = 0; i < 10; ++i) f.io.run_one_for(1ms);
      CHECK(called == before);
    }
  }
}

TEST_CASE("Link: the other side's end is noticed at once, and told once", "[link]") {
  for (const std::string& token : {std::string(kToken), std::string()}) {
    Fixture f(token);
    End& client = f.connect();
    client.link->send("hello");
    End& server = f.server();
    client.link->close();
    REQUIRE(f.closed(server));
    REQUIRE(f.closed(client));
    CHECK(server.why.code == boost::asio::error::eof);
    CHECK(server.why.context == "link to 127.0.0.1: the peer closed it");
    CHECK(client.why.code == boost::asio::error::operation_aborted);
    f.io.restart();
    f.io.run_for(20ms);
    CHECK(server.closings == 1);
    CHECK(client.closings == 1);
    CHECK(f.listener->link_count() == 0);
  }
}

TEST_CASE("Link: close sends what is queued first", "[link]") {
  for (const std::string& token : {std::string(kToken), std::string()}) {
    Fixture f(token);
    End& client = f.connect();
    for (int i = 0; i < 6; ++i) client.link->send(std::string(kFrameBytesMax, 'x'));
    client.link->send("last");
    client.link->close();
    client.link->send("too late");
    End& server = f.server();
    REQUIRE(f.closed(server));
    REQUIRE(server.messages.size() == 7);
    CHECK(server.messages.back() == "last");
  }
}

// Bytes that were never read would make the kernel reset the connection and drop what is under way.
TEST_CASE("Link: close loses nothing even while the peer is sending", "[link]") {
  for (const std::string& token : {std::string(kToken), std::string()}) {
    Fixture f(token);
    End& client = f.connect();
    client.link->send("hello");
    End& server = f.server();
    for (int i = 0; i < 6; ++i) {
      server.link->send(std::string(kFrameBytesMax, 'y'));
      client.link->send(std::string(kFrameBytesMax, 'x'));
    }
    client.link->close();
    REQUIRE(f.closed(server));
    CHECK(server.messages.size() == 7);
    CHECK(server.why.code == boost::asio::error::eof);
  }
}

TEST_CASE("Link: close does not wait for ever for a peer that does not read", "[link]") {
  Fixture f("");
  f.connect_options.link.close_timeout = 100ms;
  const UniqueFd mute = listen_socket("127.0.0.1", 0).value();
  f.connect_options.port = local_port(mute.get());
  End& client = f.connect();
  for (int i = 0; i < 6; ++i) client.link->send(std::string(kFrameBytesMax, 'x'));
  client.link->close();
  CHECK(f.closed(client));
  CHECK(client.why.code == boost::asio::error::operation_aborted);
}

TEST_CASE("Link: closing from inside a message handler delivers nothing more", "[link]") {
  Fixture f;
  End& client = f.connect();
  End& server = f.server();
  server.on_message = [&](const std::string&) { server.link->close(); };
  client.link->send("one");
  client.link->send("two");
  REQUIRE(f.closed(server));
  CHECK(server.messages == std::vector<std::string>{"one"});
}

TEST_CASE("Link: a peer that does not read is closed, never from inside send", "[link]") {
  Fixture f("");
  f.connect_options.link.unsent_bytes_max = 3 << 20;
  const UniqueFd mute = listen_socket("127.0.0.1", 0).value();
  f.connect_options.port = local_port(mute.get());
  End& client = f.connect();
  const std::string body(kFrameBytesMax, 'x');
  for (int i = 0; i < 20; ++i) client.link->send(body);
  CHECK(client.closings == 0);
  REQUIRE(f.closed(client));
  CHECK(client.why.code == Errc::kPeerSilent);
}

TEST_CASE("Link: a frame above the limit ends the link", "[link]") {
  Fixture f("");
  RawClient raw(f.listener->port());
  REQUIRE(raw.send(bytes("00 10 00 01")));
  REQUIRE(f.closed(f.server()));
  CHECK(f.server().why.code == Errc::kFrameTooLarge);
  CHECK(f.server().why.context == "link to 127.0.0.1: reading a frame of 1048577 bytes");
}

TEST_CASE("Link: frames cut at every byte arrive whole", "[link]") {
  Fixture f("");
  RawClient raw(f.listener->port());
  for (const char byte : bytes("00*3 02 \"hi\" 00*4 00*3 03 \"you\"")) {
    REQUIRE(raw.send({&byte, 1}));
    f.io.restart();
    f.io.run_for(1ms);
  }
  CHECK(run_until(f.io, [&] { return f.server().messages.size() == 3; }));
  CHECK(f.server().messages == std::vector<std::string>{"hi", "", "you"});
}

TEST_CASE("Link: a connection that dies inside a frame is closed without a message", "[link]") {
  Fixture f("");
  {
    RawClient raw(f.listener->port());
    REQUIRE(raw.send(bytes("00*3 05 \"hel\"")));
    f.server();
  }
  REQUIRE(f.closed(f.server()));
  CHECK(f.server().messages.empty());
}

// A reset, as of a machine that has restarted, in the middle of the conversation.
TEST_CASE("Link: a reset is noticed at once", "[link]") {
  Fixture f("");
  {
    RawClient raw(f.listener->port());
    REQUIRE(raw.send(bytes("00*3 02 \"hi\"")));
    REQUIRE(run_until(f.io, [&] { return f.server().messages.size() == 1; }));
    const linger reset{1, 0};
    ::setsockopt(raw.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  REQUIRE(f.closed(f.server()));
  CHECK(f.server().why.code == boost::asio::error::connection_reset);
}

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

TEST_CASE("Listener: handshakes that do not get on keep the next one waiting only for a while",
          "[link]") {
  Fixture f(ListenOptions{.token = kToken, .handshakes_at_once = 2, .handshake_patience = 20ms});
  std::deque<RawClient> halting;
  for (int i = 0; i < 10; ++i) {
    halting.emplace_back(f.listener->port()).send(std::string("\x16\x03\x01\x02\x00", 5));
  }
  CHECK(run_until(f.io, [&] { return f.listener->handshake_count() == 10; }));
  f.connect();
  CHECK(run_until(f.io, [&] { return f.servers.size() == 1; }));
  CHECK(f.listener->handshake_count() == 10);
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

TEST_CASE("Link: no descriptor is inherited by a program that is started", "[link]") {
  Fixture f;
  f.connect();
  f.server();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (local_port(fd) == 0) continue;
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
