// Relayed streams over real sockets: a Server, an agent's RelayThread, and a dialer.

#include "rendezvous/relay/relay_thread.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/frames.h"
#include "rendezvous/daemon/server.h"
#include "rendezvous/relay/relay_dial.h"
#include "rendezvous/relay/splice.h"
#include "tests/support/loop.h"
#include "tests/support/raw_client.h"
#include "tests/support/scratch_user.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr const char* kToken = "a token of the tests";

// The daemon, and node "b", whose service listens for Links with the token.
struct Nodes {
  Nodes() {
    auto opened =
        Server::open(io, {.listen = {.address = "127.0.0.1", .token = kToken}}, {}, [] {});
    server = std::move(opened.value());
    auto listening = Listener::open(io, {.address = "127.0.0.1", .token = kToken},
                                    [this](std::shared_ptr<Link> link) { serve(std::move(link)); });
    service = std::move(listening.value());
    thread.open("test", "127.0.0.1", service->port());
    connecting = async_connect(io, daemon(), [this](Result<std::shared_ptr<Link>> link) {
      agent = std::move(link.value());
      agent->start({.on_message = [this](const std::string& body) { obey(body); },
                    .on_closed = [](const Failure&) {}});
      agent->send(encode(AgentMessage(Hello{kProtocolVersion, "job", "b", "", true})));
    });
    REQUIRE(until([this] { return is_greeted; }));
  }

  ConnectOptions daemon() const {
    return {.host = "127.0.0.1", .port = server->port(), .token = kToken};
  }
  Dial dial(int port) const { return {.run_id = "job", .node = "b", .port = port}; }

  void obey(const std::string& body) {
    const auto message = decode_daemon_message(body);
    is_greeted = is_greeted || std::holds_alternative<Alive>(message.value());
    const auto* order = std::get_if<Relay>(&*message);
    if (!order) return;
    thread.meet(daemon(), {.run_id = "job", .node = "b", .stream = order->stream},
                static_cast<std::uint16_t>(order->port));
  }

  // Sends back what it gets.
  void serve(std::shared_ptr<Link> link) {
    served.push_back(link);
    link->start({.on_message = [link](const std::string& body) { link->send(body); },
                 .on_closed = [this](const Failure&) { ++closed; }});
  }

  Result<std::shared_ptr<Link>> connect(int port) {
    std::optional<Result<std::shared_ptr<Link>>> made;
    const auto handle =
        async_connect_relayed(io, daemon(), dial(port),
                              [&](Result<std::shared_ptr<Link>> link) { made = std::move(link); });
    REQUIRE(until([&] { return made.has_value(); }));
    return std::move(*made);
  }

  template <class Done>
  bool until(Done done) {
    return test::run_until(io, done);
  }

  boost::asio::io_context io;
  std::unique_ptr<Server> server;
  std::unique_ptr<Listener> service;
  std::shared_ptr<void> connecting;
  std::shared_ptr<Link> agent;
  RelayThread thread;
  std::vector<std::shared_ptr<Link>> served;
  int closed = 0;
  bool is_greeted = false;
};

TEST_CASE("Relay: a link through the daemon carries all bytes in order, and its end", "[relay]") {
  Nodes nodes;
  const auto link = nodes.connect(nodes.service->port());
  REQUIRE(link.has_value());
  std::vector<std::string> back;
  (*link)->start({.on_message = [&](std::string body) { back.push_back(std::move(body)); },
                  .on_closed = [](const Failure&) {}});
  std::vector<std::string> sent;
  for (int i = 0; i < 20; ++i) {
    sent.push_back(std::string(100'000, static_cast<char>('a' + i)));
    (*link)->send(sent.back());
  }
  CHECK(nodes.until([&] { return back.size() == sent.size(); }));
  CHECK(back == sent);
  CHECK(nodes.server->coordinator().relays().joined("job") == 1);
  (*link)->close();
  CHECK(nodes.until([&] { return nodes.closed == 1; }));
  CHECK(nodes.until([&] { return nodes.server->coordinator().relays().joined("job") == 0; }));
}

TEST_CASE("Relay: a port that does not answer, or is denied, is an error with its reason",
          "[relay]") {
  Nodes nodes;
  const int port = nodes.service->port();
  nodes.service->close();
  const auto refused = nodes.connect(port);
  REQUIRE(!refused.has_value());
  CHECK_THAT(refused.error().context, Catch::Contains("connecting to port " + std::to_string(port) +
                                                      " there: Connection refused"));
  const UniqueFd other = listen_socket("127.0.0.1", 0).value();  // Of some other program.
  const auto denied = nodes.connect(local_port(other.get()));
  REQUIRE(!denied.has_value());
  CHECK(denied.error().context ==
        "port " + std::to_string(local_port(other.get())) + " there is none of this run's");
}

// A client of the control link takes it for an alert of TLS.
TEST_CASE("Relay: a stream may begin with any byte, in both directions", "[relay]") {
  Nodes nodes;
  const UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  const std::uint16_t port = local_port(listening.get());
  nodes.thread.open("test", "127.0.0.1", port);
  RelayThread own;  // Of the worker's node.
  own.use_daemon(nodes.daemon());
  test::RawClient worker(own.serve_workers("job", "secret").value());
  worker.send("dial secret b " + std::to_string(port) + "\n");
  CHECK(nodes.until([&] { return worker.poll(), worker.received == "ok\n"; }));
  const auto accepted = accept_socket(listening.get()).value();
  REQUIRE(accepted.has_value());
  char first = 0;
  worker.send("\x15");
  CHECK(nodes.until([&] { return ::recv(accepted->fd.get(), &first, 1, MSG_DONTWAIT) == 1; }));
  CHECK(first == '\x15');
  (void)::send(accepted->fd.get(), "\x15", 1, 0);
  CHECK(nodes.until([&] { return worker.poll(), worker.received == "ok\n\x15"; }));
}

TEST_CASE("Relay: what is forwarded while the daemon restarts arrives all the same", "[relay]") {
  Nodes nodes;
  const UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  nodes.thread.open("test", "127.0.0.1", local_port(listening.get()));
  RelayThread own;  // Of the worker's node.
  const UniqueFd no_daemon = listen_socket("127.0.0.1", 0).value();
  own.use_daemon({.host = "127.0.0.1", .port = local_port(no_daemon.get()), .token = kToken});
  REQUIRE(own.serve_workers("job", "secret").has_value());
  test::RawClient worker(own.forward("b", local_port(listening.get())).value());
  worker.send("to the store");
  CHECK(nodes.until([&] { return accept_socket(no_daemon.get()).value().has_value(); }));
  own.use_daemon(nodes.daemon());
  std::optional<AcceptedSocket> accepted;
  CHECK(nodes.until([&] {
    if (auto one = accept_socket(listening.get()).value()) accepted = std::move(one);
    return accepted.has_value();
  }));
  char bytes[16] = {};
  CHECK(nodes.until([&] { return ::recv(accepted->fd.get(), bytes, 12, MSG_DONTWAIT) == 12; }));
  CHECK(std::string(bytes) == "to the store");
}

// What the whole chain holds without a reader is bounded, and none of it is in the daemon's loop.
TEST_CASE("Relay: a reader that does not read stops its writer", "[relay]") {
  Nodes nodes;
  std::optional<Released> stream;
  const UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  nodes.thread.open("test", "127.0.0.1", local_port(listening.get()));
  const auto handle = async_relay(nodes.io, nodes.daemon(), nodes.dial(local_port(listening.get())),
                                  [&](Result<Released> joined) { stream = std::move(*joined); });
  REQUIRE(nodes.until([&] { return stream.has_value(); }));
  auto reader = accept_socket(listening.get()).value();
  REQUIRE(reader.has_value());
  const std::string piece(64 << 10, 'x');
  std::size_t sent = 0;
  const auto flood = [&] {
    for (;;) {
      const ChannelStep step = stream->channel->write(piece);
      if (step.status != StepStatus::kDone) return;
      sent += step.bytes;
    }
  };
  auto quiet_since = std::chrono::steady_clock::now();
  std::size_t before = 0;
  CHECK(nodes.until([&] {
    flood();
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(before, sent) != sent) quiet_since = now;
    return now - quiet_since > 300ms;
  }));
  CHECK(sent > kSpliceBufferBytes);
  CHECK(sent < (std::size_t{64} << 20));
  std::size_t received = 0;
  std::string into(1 << 20, '\0');
  CHECK(nodes.until([&] {
    const ssize_t got = ::recv(reader->fd.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) received += static_cast<std::size_t>(got);
    return received >= sent;
  }));
}

TEST_CASE("Relay: a worker gets a stream with one line, and the bytes behind it are the stream's",
          "[relay]") {
  Nodes nodes;
  RelayThread own;  // Of the worker's node.
  own.use_daemon(nodes.daemon());
  const auto port = own.serve_workers("job", "secret");
  REQUIRE(port.has_value());
  const UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  const std::string theirs = std::to_string(local_port(listening.get()));
  const auto ask = [&](test::RawClient& client, const std::string& line) {
    client.send(line);
    CHECK(nodes.until(
        [&] { return client.poll(), client.received.find('\n') != std::string::npos; }));
    return client.received;
  };
  test::RawClient early(*port);
  CHECK(ask(early, "dial secret b " + theirs + "\n") ==
        "no port " + theirs + " there is none of this run's\n");
  test::RawClient lost(*port);
  CHECK(ask(lost, "dial secret c 7000\n") == "again the daemon has no link with node c\n");
  const auto there = nodes.thread.serve_workers("job", "other");
  {
    test::RawClient opener(there.value());
    CHECK(ask(opener, "open other 127.0.0.1 " + theirs + "\n") == "ok\n");
    test::RawClient worker(*port);
    CHECK(ask(worker, "dial secret b " + theirs + "\nhello") == "ok\n");
    const auto accepted = accept_socket(listening.get()).value();
    REQUIRE(accepted.has_value());
    std::string text(5, '\0');
    CHECK(nodes.until([&] {
      return ::recv(accepted->fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_PEEK) == 5;
    }));
    (void)::recv(accepted->fd.get(), text.data(), text.size(), MSG_DONTWAIT);
    CHECK(text == "hello");
    (void)::send(accepted->fd.get(), "there", 5, 0);
    CHECK(nodes.until([&] { return worker.poll(), worker.received == "ok\nthere"; }));
  }
  // The port is closed to others when the worker that has opened it is gone.
  CHECK(nodes.until([&] {
    test::RawClient late(*port);
    return ask(late, "dial secret b " + theirs + "\n").starts_with("no port ");
  }));
  ConnectOptions nowhere = nodes.daemon();
  nowhere.port = local_port(listen_socket("127.0.0.1", 0).value().get());  // Closed again.
  own.use_daemon(nowhere);
  test::RawClient patient(*port);
  CHECK(ask(patient, "dial secret b " + theirs + "\n").starts_with("again connecting to "));
  test::RawClient stranger(*port);
  stranger.send("dial guess b " + theirs + "\n");
  CHECK(nodes.until([&] { return stranger.poll(), stranger.closed; }));
}

TEST_CASE(
    "Relay: a port that was shut is no longer dialled, and a forward that was stopped is closed",
    "[relay]") {
  Nodes nodes;
  const UniqueFd listening = listen_socket("127.0.0.1", 0).value();
  const std::uint16_t port = local_port(listening.get());
  nodes.thread.open("store", "127.0.0.1", port);
  nodes.thread.shut("store");
  const auto denied = nodes.connect(port);
  REQUIRE(!denied.has_value());
  CHECK_THAT(denied.error().context, Catch::EndsWith("there is none of this run's"));
  RelayThread own;
  own.use_daemon(nodes.daemon());
  const std::uint16_t here = own.forward("b", port).value();
  CHECK(test::RawClient(here).connected);
  own.stop_forwarding();
  CHECK(nodes.until([&] { return !test::RawClient(here).connected; }));
}

TEST_CASE("Relay: another user of this machine takes no worker's place", "[relay]") {
  if (::geteuid() != 0) return test::skip("needs root");
  for (const bool for_all_users : {false, true}) {
    RelayThread own(for_all_users);
    const std::uint16_t port = own.serve_workers("job", "secret").value();
    std::optional<test::RawClient> stranger;
    {
      const test::AsUser other(test::kSomeUser);
      stranger.emplace(port);
    }
    stranger->send("open secret 127.0.0.1 7000\n");
    boost::asio::io_context io;
    CHECK(test::run_until(io, [&] {
      stranger->poll();
      return stranger->closed || !stranger->received.empty();
    }));
    CHECK(stranger->received == (for_all_users ? "ok\n" : ""));
  }
}

TEST_CASE("Relay: what a worker asks for is read strictly", "[relay]") {
  const auto parse = [](const char* line) { return parse_entry_request(line, "n"); };
  CHECK(parse("open n ::1 1,65535").value() == EntryRequest(OpenRequest{"::1", {1, 65535}}));
  CHECK(parse("dial n host.1 29500").value() == EntryRequest(DialRequest{"host.1", 29500}));
  for (const char* line :
       {"", "open", "shut n a 1", "open m a 1", "open n", "open n a", "open n a ", "open n a 0",
        "open n a 65536", "open n a 1,", "open n a 1,x", "dial n b", "dial n b 1 ", "dial n b 1,2",
        "dial  n b 1"}) {
    CAPTURE(line);
    CHECK(!parse(line).has_value());
  }
  CHECK(!parse_entry_request("dial  b 1", "").has_value());
}

}  // namespace
}  // namespace ddprun::rendezvous
