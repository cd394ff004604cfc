// The daemon's shell over real sockets and a log that is as slow as the test likes: how it ends,
// with what could be recorded and with what could not.

#include <catch2/catch.hpp>
#include <deque>

#include "common/frames.h"
#include "rendezvous/daemon/server.h"
#include "tests/support/loop.h"
#include "tests/support/raw_client.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

struct LogFacts {
  std::deque<std::function<void()>> pending;  // Appends that are not durable yet.
  std::string written;
  int snapshots = 0;
  bool at_once = true;  // Appends are durable from inside the call.
  bool may_decide = true;
  bool wants_snapshot = false;
  bool left = false;
  std::optional<std::string> trouble;
};

class FakeLog : public RecordLog {
 public:
  explicit FakeLog(LogFacts& facts) : facts_(facts) {}
  void append(std::string records, std::function<void()> done) override {
    facts_.written += records;
    if (facts_.at_once) return done();
    facts_.pending.push_back(std::move(done));
  }
  void replace(std::string) override {
    ++facts_.snapshots;
    facts_.wants_snapshot = false;
  }
  bool wants_snapshot() const override { return facts_.wants_snapshot; }
  std::optional<std::string> trouble() const override { return facts_.trouble; }
  bool may_decide(TimePoint) const override { return facts_.may_decide; }
  void leave(std::function<void()> done) override {
    facts_.left = true;
    done();
  }

 private:
  LogFacts& facts_;
};

// A node without an agent: what it sends, and what it has received.
class Node {
 public:
  Node(std::uint16_t port, std::string id) : client_(port), id_(std::move(id)) {
    deliver(Hello{.run_id = "job", .node = id_});
  }
  void deliver(const AgentMessage& message) {
    std::string bytes;
    append_frame(bytes, encode(message));
    client_.send(bytes);
  }
  void join(int nnodes) {
    NodeOffer offer;
    offer.host = id_;
    offer.config.nnodes_min = offer.config.nnodes_max = nnodes;
    deliver(Join{offer, -1});
  }
  template <class Message>
  const Message* got() {
    receive();
    for (const DaemonMessage& message : received_) {
      if (const auto* found = std::get_if<Message>(&message)) return found;
    }
    return nullptr;
  }
  template <class Message>
  std::size_t times_sent() {
    receive();
    return static_cast<std::size_t>(std::count_if(
        received_.begin(), received_.end(),
        [](const auto& message) { return std::holds_alternative<Message>(message); }));
  }
  bool hung_up() {
    receive();
    return client_.closed;
  }

 private:
  void receive() {
    client_.poll();
    frames_.feed(std::exchange(client_.received, ""));
    for (auto body = frames_.next(); body && *body; body = frames_.next()) {
      received_.push_back(decode_daemon_message(**body).value());
    }
  }

  test::RawClient client_;
  std::string id_;
  FrameReader frames_;
  std::vector<DaemonMessage> received_;
};

struct Daemon {
  explicit Daemon(bool end_when_over = false, Journal journal = {}) {
    auto opened =
        Server::open(io, {.listen = {.address = "127.0.0.1"}, .end_when_over = end_when_over},
                     {.log = std::make_unique<FakeLog>(log), .journal = std::move(journal)},
                     [this] { ++over; });
    server = std::move(opened.value());
  }
  template <class Done>
  bool until(Done done) {
    return test::run_until(io, done, kPatience);
  }
  // Two nodes with their seats.
  void seat(Node& a, Node& b) {
    a.join(2), b.join(2);
    REQUIRE(until([&] { return a.got<Assign>() && b.got<Assign>(); }));
  }

  boost::asio::io_context io;
  LogFacts log;
  int over = 0;
  std::unique_ptr<Server> server;
};

TEST_CASE("Server: told to shut down, it tells every node the verdict and waits for their end",
          "[server]") {
  Daemon daemon;
  auto a = std::make_unique<Node>(daemon.server->port(), "a");
  auto b = std::make_unique<Node>(daemon.server->port(), "b");
  daemon.seat(*a, *b);
  daemon.server->shut_down(15);
  CHECK(daemon.server->ending());
  REQUIRE(daemon.until([&] { return a->got<StopRound>() && b->got<StopRound>(); }));
  CHECK(a->got<EndRun>() == nullptr);  // Not before all workers are gone.
  a->deliver(Stopped{a->got<StopRound>()->round, {}});
  b->deliver(Stopped{b->got<StopRound>()->round, {}});
  REQUIRE(daemon.until([&] { return a->got<EndRun>() && b->got<EndRun>(); }));
  CHECK(a->got<EndRun>()->verdict.exit_code == 143);
  CHECK(a->got<EndRun>()->verdict == b->got<EndRun>()->verdict);
  CHECK(daemon.over == 0);
  a.reset(), b.reset();
  REQUIRE(daemon.until([&] { return daemon.over > 0; }));
  CHECK(daemon.log.left);
}

TEST_CASE("Server: told to shut down while nothing can be recorded, it ends no run", "[server]") {
  Daemon daemon;
  Node a(daemon.server->port(), "a"), b(daemon.server->port(), "b");
  daemon.seat(a, b);
  const std::string before = daemon.log.written;
  SECTION("the log is in trouble") { daemon.log.trouble = "the disk is full"; }
  SECTION("another daemon may have taken over") { daemon.log.may_decide = false; }
  daemon.server->shut_down(15);
  CHECK(daemon.over == 1);
  CHECK(daemon.log.left);
  CHECK(daemon.log.written == before);
  daemon.io.poll();
  CHECK(a.got<EndRun>() == nullptr);
}

TEST_CASE("Server: told to shut down while the log stalls, it decides nothing more", "[server]") {
  Daemon daemon;
  Node a(daemon.server->port(), "a"), b(daemon.server->port(), "b");
  daemon.seat(a, b);
  daemon.log.at_once = false;
  a.deliver(Finished{.round = a.got<Assign>()->seat.round});
  // A heartbeat is answered at once only by a gate that stalls: else it waits behind the record.
  const std::size_t alive = b.times_sent<Alive>();
  REQUIRE(daemon.until([&] {
    b.deliver(Heartbeat{.round = b.got<Assign>()->seat.round});
    return b.times_sent<Alive>() > alive;
  }));
  const std::string before = daemon.log.written;
  daemon.server->shut_down(15);
  CHECK(daemon.over == 1);
  CHECK(daemon.log.written == before);
  CHECK(a.got<EndRun>() == nullptr);
  // The record that was under way becomes durable after all: too late to be sent to any node.
  for (auto& done : std::exchange(daemon.log.pending, {})) done();
  CHECK(daemon.over == 1);
}

TEST_CASE("Server: leaving hangs up on everybody and ends no run", "[server]") {
  Daemon daemon;
  Node a(daemon.server->port(), "a"), b(daemon.server->port(), "b");
  daemon.seat(a, b);
  const std::string before = daemon.log.written;
  const std::uint16_t port = daemon.server->port();
  daemon.server->leave();
  REQUIRE(daemon.until([&] { return a.hung_up() && b.hung_up() && daemon.over > 0; }));
  CHECK(daemon.over == 1);
  CHECK(daemon.log.left);
  CHECK(daemon.log.written == before);  // No node is counted as lost.
  CHECK(a.got<EndRun>() == nullptr);
  CHECK(a.got<StopRound>() == nullptr);
  CHECK_FALSE(test::RawClient(port).connected);
}

TEST_CASE("Server: leaving does not wait for a record that is not durable yet", "[server]") {
  Daemon daemon;
  daemon.log.at_once = false;
  Node a(daemon.server->port(), "a");
  a.join(1);
  REQUIRE(daemon.until([&] { return !daemon.log.pending.empty(); }));
  daemon.server->leave();
  CHECK(daemon.over == 1);
  CHECK(a.got<Assign>() == nullptr);
}

TEST_CASE("Server: a daemon that may decide nothing any more hears nothing", "[server]") {
  Daemon daemon;
  Node a(daemon.server->port(), "a"), b(daemon.server->port(), "b");
  daemon.seat(a, b);
  const std::string before = daemon.log.written;
  const std::size_t links = daemon.server->listener().link_count();
  daemon.log.may_decide = false;
  a.deliver(Failed{a.got<Assign>()->seat.round, {.rank = 0, .exit_code = 7}});
  auto other = std::make_unique<Node>(daemon.server->port(), "c");  // What was sent is read then.
  REQUIRE(daemon.until([&] { return daemon.server->listener().link_count() == links + 1; }));
  other.reset();
  REQUIRE(daemon.until([&] { return daemon.server->listener().link_count() == links; }));
  CHECK(daemon.log.written == before);
  CHECK(b.got<StopRound>() == nullptr);
}

// As a daemon finds it that is started so much later.
Journal aged(Journal journal, Duration age) {
  for (JournalEntry& entry : journal.entries) {
    std::visit([&](auto& any) { any.when -= age; }, entry);
  }
  return journal;
}

TEST_CASE("Server: the time before a restart is no standstill of the new daemon", "[server]") {
  // No clock of this machine shows a time before it was started.
  const Duration up = std::chrono::steady_clock::now().time_since_epoch();
  const Duration away = std::min<Duration>(1h, up / 2);
  Journal journal;
  {
    Daemon before;
    Node a(before.server->port(), "a"), b(before.server->port(), "b");
    before.seat(a, b);
    journal = aged(decode_journal(journal_header() + before.log.written), away);
  }
  REQUIRE(journal.entries.size() > 2);
  Daemon daemon(/*end_when_over=*/false, std::move(journal));
  Node a(daemon.server->port(), "a");
  const auto recorded = [&](auto is) {
    const Journal now = decode_journal(journal_header() + daemon.log.written);
    return std::any_of(now.entries.begin(), now.entries.end(), [&](const JournalEntry& entry) {
      const auto* record = std::get_if<Record>(&entry);
      return record && is(record->event.what);
    });
  };
  REQUIRE(daemon.until([&] {
    return recorded([](const auto& what) { return std::holds_alternative<Returned>(what); });
  }));
  CHECK_FALSE(recorded([&](const auto& what) {
    const auto* still = std::get_if<StoodStill>(&what);
    return still && still->how_long > away / 2;
  }));
}

TEST_CASE("Server: with end_when_over it ends after the last node of the last run", "[server]") {
  Daemon daemon(/*end_when_over=*/true);
  auto a = std::make_unique<Node>(daemon.server->port(), "a");
  a->join(1);
  REQUIRE(daemon.until([&] { return a->got<Assign>(); }));
  a->deliver(Finished{.round = a->got<Assign>()->seat.round});
  REQUIRE(daemon.until([&] { return a->got<EndRun>(); }));
  CHECK(a->got<EndRun>()->verdict.kind == Verdict::Kind::kSuccess);
  CHECK(daemon.over == 0);
  a.reset();
  CHECK(daemon.until([&] { return daemon.over > 0; }));
}

TEST_CASE("Server: a snapshot is taken when the log wants one, and a lost node is recorded",
          "[server]") {
  Daemon daemon;
  Node a(daemon.server->port(), "a");
  auto b = std::make_unique<Node>(daemon.server->port(), "b");
  daemon.seat(a, *b);
  CHECK(daemon.log.snapshots == 0);
  daemon.log.wants_snapshot = true;
  const std::string before = daemon.log.written;
  b.reset();
  REQUIRE(daemon.until([&] { return a.got<StopRound>(); }));
  CHECK(daemon.log.written != before);
  CHECK(daemon.log.snapshots == 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
