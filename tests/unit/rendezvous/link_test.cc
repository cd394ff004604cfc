// The control link over loopback: async_connect on one side, the Listener on the other, both in one
// loop.

#include "rendezvous/net/link.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <random>

#include "rendezvous/net/listener.h"
#include "tests/support/bytes.h"
#include "tests/support/link_fixture.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::RawClient;
using test::run_until;

using namespace test_links;  // NOLINT(google-build-using-namespace)

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
  CHECK(client.why.context == "link to 127.0.0.1: it requires a token, but none was given");
  CHECK(f.servers.empty());
}

TEST_CASE("Link: a refused connection is not taken for a wrong token", "[link]") {
  Fixture f;
  f.listener->close();
  const auto link = f.try_connect(f.connect_options);
  REQUIRE(link.has_error());
  CHECK(link.error().code == std::errc::connection_refused);
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

TEST_CASE("Link: a host that swallows packets is reported as unanswering within the timeout",
          "[link]") {
  // A listener with a full queue drops what comes: the nearest thing to a dead host on loopback.
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
  CHECK(link.error().code == std::errc::timed_out);
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

// Where localhost is ::1 first. One after the other, the dead address alone would take a third of
// the five minutes.
TEST_CASE("Link: an address that swallows packets costs the next one nothing", "[link]") {
  Fixture f;
  const auto full = listen_socket("::1", f.connect_options.port);
  if (!full) return;  // No IPv6 here.
  REQUIRE(::listen(full->get(), 0) == 0);
  std::deque<UniqueFd> fillers;
  for (int i = 0; i < 4; ++i) {
    const boost::asio::ip::tcp::endpoint to(boost::asio::ip::make_address("::1"),
                                            f.connect_options.port);
    fillers.push_back(client_socket(to.address()).value());
    ::connect(fillers.back().get(), to.data(), static_cast<socklen_t>(to.size()));
  }
  f.connect_options.host = "localhost";
  f.connect_options.timeout = 300s;
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
    CHECK(server.why.code == make_error_code(boost::asio::error::eof));
    CHECK(server.why.context == "link to 127.0.0.1: the peer closed it");
    CHECK(client.why.code == std::errc::operation_canceled);
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
    CHECK(server.why.code == make_error_code(boost::asio::error::eof));
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
  CHECK(client.why.code == std::errc::operation_canceled);
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
  CHECK(f.server().why.code == std::errc::connection_reset);
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
