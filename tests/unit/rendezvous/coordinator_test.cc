#include "rendezvous/coordinator/coordinator.h"

#include <catch2/catch.hpp>

#include "common/release.h"

namespace ddprun::rendezvous {
namespace {

using Lines = std::vector<std::string>;

// Talks to a Coordinator and shows what it does as text: "1 <- assign", "2 hang up (why)".
struct Desk {
  Coordinator coordinator;
  TimePoint now{std::chrono::hours(1)};
  std::string disk;

  Lines show(const std::vector<LinkAction>& actions) {
    coordinator.check_invariants();
    disk += coordinator.take_records();
    Lines lines;
    for (const LinkAction& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) {
        const auto message = decode_daemon_message(send->body);
        REQUIRE(message.has_value());
        static constexpr const char* kNames[] = {"waiting", "assign",  "stop", "end",
                                                 "refuse",  "dismiss", "alive"};
        lines.push_back(std::to_string(send->link) + " <- " + kNames[message->index()]);
      } else {
        const auto& hangup = std::get<Hangup>(action);
        lines.push_back(std::to_string(hangup.link) + " hang up (" + hangup.reason + ")");
      }
    }
    return lines;
  }
  Lines deliver(LinkId link, const AgentMessage& message) {
    return show(coordinator.on_message(link, encode(message), now));
  }
  Lines join(LinkId link, const std::string& run, const NodeId& node, int nodes = 1) {
    CHECK(deliver(link, Hello{kProtocolVersion, run, node}) ==
          Lines{std::to_string(link) + " <- alive"});
    NodeOffer offer;
    offer.host = node;
    offer.config.nnodes_min = offer.config.nnodes_max = nodes;
    return deliver(link, Join{offer, -1});
  }
  Lines close(LinkId link) { return show(coordinator.on_closed(link, now)); }
  // What the timer does `later`, if 1 beats and all that is known of 2 is when its kernel answered.
  Lines poll(int later_ms, int answered_ago_ms) {
    now += Milliseconds(later_ms);
    (void)deliver(1, Heartbeat{0});
    const Reach reach{now - Milliseconds(answered_ago_ms), {}};
    for (const LinkId link : coordinator.quiet(now)) {
      CHECK(link == 2);  // What it is sent, its kernel acknowledges.
      CHECK(show(coordinator.on_reach(link, reach, now)) == Lines{"2 <- alive"});
    }
    return show(coordinator.on_tick(now));
  }
};

TEST_CASE("Coordinator: runs do not know of each other", "[coordinator]") {
  Desk desk;
  CHECK(desk.join(1, "x", "a") == Lines{"1 <- assign"});
  CHECK(desk.join(2, "y", "a") == Lines{"2 <- assign"});
  CHECK(desk.deliver(1, Finished{0}) == Lines{"1 <- end"});
  CHECK(desk.deliver(2, Heartbeat{0}) == Lines{"2 <- alive"});
}

TEST_CASE("Coordinator: a translated address is noticed by the link, and told to the others",
          "[coordinator]") {
  Desk desk;
  const auto join = [&](LinkId link, const NodeId& node, const std::string& own,
                        const std::string& from) {
    const Hello hello{kProtocolVersion, "x", node};
    (void)desk.show(desk.coordinator.on_message(link, encode(AgentMessage(hello)), desk.now, from));
    NodeOffer offer;
    offer.host = node;
    offer.address = offer.link_address = own;
    offer.seen_at = "1.2.3.4";  // Not for a node to say.
    offer.config.nnodes_min = offer.config.nnodes_max = 2;
    std::vector<Neighbour> seen;
    for (const LinkAction& action :
         desk.coordinator.on_message(link, encode(AgentMessage(Join{offer, -1})), desk.now)) {
      const auto message = decode_daemon_message(std::get<Send>(action).body).value();
      if (const auto* assign = std::get_if<Assign>(&message)) {
        seen.push_back(assign->seat.neighbour.value());
      }
    }
    return seen;
  };
  CHECK(join(1, "a", "127.0.0.1", "127.0.0.1").empty());
  const std::vector<Neighbour> seen = join(2, "b", "192.168.1.2", "10.99.0.2");
  REQUIRE(seen.size() == 2);
  CHECK(seen[0] == Neighbour{"b", "192.168.1.2", 0, "10.99.0.2"});
  CHECK(seen[1] == Neighbour{"a", "127.0.0.1", 0, ""});
}

TEST_CASE("Coordinator: a node that goes before it has joined is not on record", "[coordinator]") {
  Desk desk;
  CHECK(desk.join(1, "x", "a", 2) == Lines{"1 <- waiting"});
  const std::string before = desk.disk;
  CHECK(desk.deliver(2, Hello{kProtocolVersion, "x", "b"}) == Lines{"2 <- alive"});
  CHECK(desk.close(2).empty());
  CHECK(desk.disk == before);
  CHECK(desk.close(1).empty());
  CHECK(desk.disk.size() > before.size());
  CHECK(desk.coordinator.runs().empty());
}

TEST_CASE("Coordinator: an ended run is forgotten though its last visitor has not joined it",
          "[coordinator]") {
  Desk desk;
  CHECK(desk.join(1, "x", "a") == Lines{"1 <- assign"});
  CHECK(desk.deliver(1, Finished{0}) == Lines{"1 <- end"});
  CHECK(desk.deliver(2, Hello{kProtocolVersion, "x", "b"}) == Lines{"2 <- alive"});
  CHECK(desk.close(1).empty());
  CHECK(desk.close(2).empty());
  REQUIRE(desk.coordinator.deadline().has_value());
  desk.now = *desk.coordinator.deadline();
  (void)desk.show(desk.coordinator.on_tick(desk.now));
  CHECK(desk.coordinator.runs().empty());
}

TEST_CASE("Coordinator: nodes that wait under different run ids hear of each other",
          "[coordinator]") {
  Desk desk;
  const auto waits_for = [&](const char* run) {
    return desk.coordinator.runs().at(run).waiting_for(desk.now);
  };
  const std::string of_two = "waits at the same daemon for 1 of 2 nodes: is --rdzv-id equal";
  (void)desk.join(1, "job1", "a", 2);
  CHECK(desk.deliver(1, Heartbeat{-1}) == Lines{"1 <- alive"});
  (void)desk.join(2, "job2", "b", 2);
  CHECK_THAT(waits_for("job1"), Catch::Contains("; run job2 " + of_two));
  CHECK_THAT(waits_for("job2"), Catch::Contains("; run job1 " + of_two));
  CHECK(desk.deliver(1, Heartbeat{-1}) == Lines{"1 <- alive", "1 <- waiting"});
  CHECK(desk.deliver(1, Heartbeat{-1}) == Lines{"1 <- alive"});
  (void)desk.join(3, "other", "c", 3);  // Wants another number of nodes: is not meant.
  CHECK_THAT(waits_for("other"), !Catch::Contains("same daemon"));
  (void)desk.join(4, "job1", "d", 2);
  CHECK_THAT(waits_for("job2"), !Catch::Contains("same daemon"));
}

TEST_CASE("Coordinator: where many runs wait, none is thought to be mistaken", "[coordinator]") {
  Desk desk;
  for (const char* run : {"1", "2", "3", "4", "5"}) (void)desk.join(*run, run, "a", 2);
  CHECK_THAT(desk.coordinator.runs().at("1").waiting_for(desk.now),
             !Catch::Contains("same daemon"));
}

TEST_CASE("Coordinator: what sync timers count is added up beside the run, and goes with it",
          "[coordinator]") {
  Desk desk;
  const auto counted = [](std::uint64_t steps) {
    return Heartbeat{0, SyncIncrease{.sums = {{"steps", steps}}}};
  };
  (void)desk.join(1, "x", "a", 2);
  (void)desk.join(2, "x", "b", 2);
  (void)desk.join(3, "y", "a");
  const std::size_t written = desk.disk.size();
  CHECK(desk.deliver(1, counted(5)) == Lines{"1 <- alive"});
  CHECK(desk.deliver(2, counted(6)) == Lines{"2 <- alive"});
  CHECK(desk.deliver(3, counted(100)) == Lines{"3 <- alive"});
  CHECK(desk.disk.size() == written);
  CHECK(desk.coordinator.sync().at("x").sums()["steps"] == 11);
  CHECK(desk.coordinator.sync().at("y").sums()["steps"] == 100);
  (void)desk.deliver(4, Hello{kProtocolVersion, "x", "stranger"});
  (void)desk.deliver(4, counted(1000));
  CHECK(desk.coordinator.sync().at("x").sums()["steps"] == 11);
  (void)desk.close(2);
  (void)desk.deliver(1, counted(1));
  CHECK(desk.coordinator.sync().at("x").sums()["steps"] == 12);  // Nothing is taken back.
  CHECK(desk.deliver(3, Finished{0}) == Lines{"3 <- end"});
  (void)desk.close(3);
  CHECK(desk.coordinator.sync().contains("y"));
  desk.now += std::chrono::hours(2);
  (void)desk.show(desk.coordinator.on_tick(desk.now));
  CHECK_FALSE(desk.coordinator.runs().contains("y"));
  CHECK_FALSE(desk.coordinator.sync().contains("y"));
}

TEST_CASE("Coordinator: whoever does not say hello, or in another version, is sent away",
          "[coordinator]") {
  Desk desk;
  CHECK(desk.deliver(1, Heartbeat{0}) == Lines{"1 hang up (its first message was no hello)"});
  const Lines lines = desk.deliver(2, Hello{kProtocolVersion + 1, "x", "a"});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "2 <- refuse");
  CHECK(lines[1].find("install the same ddprun on every node") != std::string::npos);
  CHECK(desk.show(desk.coordinator.on_message(3, "\x16\x03\x01", desk.now))
            .at(0)
            .starts_with("3 hang up"));
}

TEST_CASE("Coordinator: an agent that connects again replaces its dead connection without a loss",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  CHECK(desk.deliver(3, Hello{kProtocolVersion, "x", "a"}) ==
        Lines{"1 hang up (the agent connected again)", "3 <- alive"});
  CHECK(desk.close(1).empty());
  CHECK(desk.deliver(3, Heartbeat{0}) == Lines{"3 <- alive"});
}

TEST_CASE("Coordinator: a run id can be used again once all of the run before have gone",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a");
  CHECK(desk.deliver(1, Finished{0}) == Lines{"1 <- end"});
  CHECK(desk.join(2, "x", "late") ==
        Lines{"2 <- end"});  // "a" is still here: this is the same run.
  desk.close(1);
  desk.close(2);
  CHECK(desk.coordinator.over());
  CHECK(desk.join(3, "x", "b") == Lines{"3 <- assign"});
  CHECK_FALSE(desk.coordinator.over());

  Coordinator after_crash;
  after_crash.replay(decode_journal(desk.disk), desk.now);
  CHECK(after_crash.runs().at("x").state() == Run::State::kRunning);
  CHECK(after_crash.runs().at("x").has_node("b"));
}

TEST_CASE("Coordinator: a node that returns after the end of its run gets the verdict",
          "[coordinator]") {
  Desk desk;
  NodeOffer offer;
  offer.host = "b";
  offer.config.nnodes_max = 2;
  const auto joins = [&](LinkId link, const NodeId& node, int after_round) {
    (void)desk.deliver(link, Hello{kProtocolVersion, "x", node});
    return desk.deliver(link, Join{.offer = offer, .after_round = after_round});
  };
  (void)joins(1, "a", -1);
  CHECK(joins(2, "b", -1) == Lines{"1 <- assign", "2 <- assign"});
  // "b" stands still, and is lost; "a" trains on, and is done.
  CHECK(desk.close(2) == Lines{"1 <- stop"});
  (void)desk.deliver(1, Stopped{0, {}});
  CHECK(desk.deliver(1, Join{.offer = offer, .after_round = 0}) == Lines{"1 <- assign"});
  CHECK(desk.deliver(1, Finished{1}) == Lines{"1 <- end"});
  (void)desk.close(1);
  CHECK(joins(3, "b", 0) == Lines{"3 <- end"});
  (void)desk.close(3);
  CHECK(joins(4, "c", 7).back() != "4 <- end");  // Of another run of that name.
}

TEST_CASE("Coordinator: a node that was dismissed without a seat begins no run after the end",
          "[coordinator]") {
  Desk desk;
  NodeOffer offer;
  offer.host = "c";
  offer.config.nnodes_max = 2;
  const auto joins = [&](LinkId link, const NodeId& node) {
    (void)desk.deliver(link, Hello{kProtocolVersion, "x", node});
    return desk.deliver(link, Join{.offer = offer, .after_round = -1});
  };
  (void)joins(1, "a");
  CHECK(joins(2, "b") == Lines{"1 <- assign", "2 <- assign"});
  (void)joins(3, "c");  // In reserve.
  Leave leave;
  leave.reason = "its fans are loud";
  leave.planned = true;
  CHECK(desk.deliver(3, leave) == Lines{"3 <- dismiss"});
  (void)desk.close(3);
  (void)desk.deliver(1, Finished{0});
  (void)desk.deliver(2, Finished{0});
  (void)desk.close(1);
  (void)desk.close(2);
  CHECK(joins(4, "c") == Lines{"4 <- dismiss"});  // It had not received that.
  CHECK(desk.coordinator.runs().at("x").state() == Run::State::kEnded);
}

TEST_CASE("Coordinator: a daemon that comes back knows seats, restarts and verdicts",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  Desk next;
  next.now = desk.now + std::chrono::seconds(60);
  next.coordinator.replay(decode_journal(desk.disk), next.now);
  CHECK(next.deliver(1, Hello{kProtocolVersion, "x", "b"}) == Lines{"1 <- alive"});
  CHECK(next.deliver(1, Heartbeat{0}) == Lines{"1 <- alive"});
  CHECK(next.deliver(1, Heartbeat{-1}) == Lines{"1 <- alive", "1 <- assign"});
  // No node is lost for a silence that was the daemon's own.
  next.now += std::chrono::seconds(9);
  CHECK(next.deliver(1, Heartbeat{0}) == Lines{"1 <- alive"});
  CHECK(next.show(next.coordinator.on_tick(next.now)).empty());
  next.now += std::chrono::seconds(3);
  CHECK(next.deliver(1, Heartbeat{0}) == Lines{"1 <- alive"});
  CHECK(next.show(next.coordinator.on_tick(next.now)) == Lines{"1 <- stop"});
}

TEST_CASE("Coordinator: silence is noticed on a tick and ends the round for the others",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.now += std::chrono::milliseconds(700);
  desk.deliver(1, Heartbeat{0});
  desk.now += std::chrono::milliseconds(300);
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)) ==
        Lines{"2 hang up (its node was silent for 1000 ms)", "1 <- stop"});
}

TEST_CASE("Coordinator: a node whose kernel answers stands still, and is kept for a minute",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  for (int beat = 1; beat < 240; ++beat) CHECK(desk.poll(250, 50).empty());
  CHECK(desk.poll(250, 0).at(0) ==
        "2 hang up (its node was silent for 60000 ms, though its host answers)");
}

TEST_CASE("Coordinator: no kernel is silent while the daemon is late or stands still",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  CHECK(desk.poll(500, 500).empty());
  for (int i = 0; i < 9; ++i) CHECK(desk.poll(700, 660).empty());  // The last look was answered.
  CHECK(desk.poll(250, 260).empty());  // So was this one: TCP's clock ticks every 10 ms.
  desk.now += Milliseconds(700);
  (void)desk.show(desk.coordinator.on_standstill(Milliseconds(650), desk.now));
  CHECK(desk.poll(0, 960).empty());  // Our own kernel may have stood still with us.
  CHECK(desk.poll(250, 1210).empty());
  CHECK(desk.poll(250, 1460).at(0) == "2 hang up (its node was silent for 1000 ms)");
}

TEST_CASE("Coordinator: where packets take long a node has more time, and the log says so once",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a");
  (void)desk.coordinator.take_news();
  desk.now += Milliseconds(600);
  const Reach far{desk.now - Milliseconds(550), Milliseconds(400)};
  (void)desk.show(desk.coordinator.on_reach(1, far, desk.now));
  (void)desk.show(desk.coordinator.on_reach(1, far, desk.now));
  const std::vector<News> news = desk.coordinator.take_news();
  REQUIRE(news.size() == 1);
  CHECK(news[0].text ==
        "packets take 400 ms to a node and back: it is lost after 8000 ms of silence");
  desk.now += Milliseconds(7300);
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)).empty());
  desk.now += Milliseconds(200);
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)).size() == 1);
}

TEST_CASE("Coordinator: a link that closed while the daemon stood still is no lost node",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.now += Milliseconds(5000);
  CHECK(desk.show(desk.coordinator.on_standstill(Milliseconds(4800), desk.now)).empty());
  CHECK(desk.close(2).empty());
  CHECK(desk.deliver(1, Failed{0, {.rank = 0, .signal = 9}}) ==
        Lines{"1 <- stop"});  // It is handled.
  CHECK(desk.deliver(3, Hello{kProtocolVersion, "x", "b"}) == Lines{"3 <- alive"});
  CHECK(desk.deliver(3, Stopped{0, {}}).empty());
  CHECK(desk.deliver(1, Stopped{0, {}}) == Lines{"1 <- end", "3 <- end"});
  CHECK(desk.coordinator.runs().at("x").verdict()->exit_code == 137);
}

TEST_CASE("Coordinator: a node whose link closed in a standstill has ten seconds to come back",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.now += Milliseconds(5000);
  CHECK(desk.show(desk.coordinator.on_standstill(Milliseconds(4800), desk.now)).empty());
  CHECK(desk.close(2).empty());
  desk.now += Milliseconds(10'900);
  desk.deliver(1, Heartbeat{0});
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)).empty());
  desk.now += Milliseconds(100);
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)) == Lines{"1 <- stop"});
}

TEST_CASE("Coordinator: a link that closes long after a standstill is a lost node",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.now += Milliseconds(5000);
  (void)desk.show(desk.coordinator.on_standstill(Milliseconds(4800), desk.now));
  desk.now += Milliseconds(2500);
  desk.deliver(1, Heartbeat{0});
  CHECK(desk.close(2) == Lines{"1 <- stop"});
}

TEST_CASE("Coordinator: an agent whose messages it cannot read is refused, and lost once",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  CHECK(desk.deliver(2, Hello{kProtocolVersion, "x", "b", "9.8.7"}) == Lines{"2 <- alive"});
  NodeOffer offer;
  offer.host = "b";
  offer.config.nnodes_min = offer.config.nnodes_max = 2;
  CHECK(desk.deliver(2, Join{offer, -1}) == Lines{"1 <- assign", "2 <- assign"});
  const std::string what = "decoding field 'round' of 'heartbeat'";
  const auto actions =
      desk.coordinator.on_message(2, R"({"is":"heartbeat","round":"0"})", desk.now);
  const auto refused = decode_daemon_message(std::get<Send>(actions.at(0)).body).value();
  CHECK(std::get<Refuse>(refused).reason ==
        "the daemon (ddprun " + std::string(release()) +
            ") cannot read what this node (ddprun 9.8.7) has sent (" + what +
            "); install the same ddprun on every node");
  CHECK(desk.show(actions) ==
        Lines{"2 <- refuse",
              "2 hang up (sent what the daemon (ddprun " + std::string(release()) +
                  ") cannot read (" + what + "); it has ddprun 9.8.7)",
              "1 <- stop"});
  CHECK(desk.close(2).empty());
  CHECK(desk.coordinator.counters().refused.of(Refusal::kBadMessage) == 1);
  // What no node has sent is answered by nothing.
  const auto stranger = desk.show(desk.coordinator.on_message(3, "{}", desk.now));
  CHECK(stranger == Lines{"3 hang up (decoding field 'is' of a message: bad message)"});
}

TEST_CASE("Coordinator: an agent that says so before it closes its link may come back",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  CHECK(desk.deliver(2, Away{}).empty());
  CHECK(desk.close(2).empty());
  SECTION("which it does") {
    desk.now += Milliseconds(9000);
    CHECK(desk.deliver(3, Hello{kProtocolVersion, "x", "b"}) == Lines{"3 <- alive"});
    CHECK(desk.deliver(3, Heartbeat{0}) == Lines{"3 <- alive"});
  }
  SECTION("or not: then it is lost after a standstill and its usual time") {
    desk.now += Milliseconds(60'900);
    desk.deliver(1, Heartbeat{0});
    CHECK(desk.show(desk.coordinator.on_tick(desk.now)).empty());
    desk.now += Milliseconds(100);
    CHECK(desk.show(desk.coordinator.on_tick(desk.now)) == Lines{"1 <- stop"});
  }
}

TEST_CASE("Coordinator: a standstill of the daemon takes nobody's time, also after its return",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.now += std::chrono::minutes(9);
  desk.deliver(1, Heartbeat{-1});
  desk.now += std::chrono::minutes(2);  // Ten minutes after the first node's coming it is given up.
  const Milliseconds two_minutes(std::chrono::minutes(2));
  CHECK(desk.show(desk.coordinator.on_standstill(two_minutes, desk.now)).empty());
  Desk next;
  next.coordinator.load(decode_journal(desk.disk));
  CHECK(next.coordinator.runs().at("x").waiting_for(desk.now) ==
        desk.coordinator.runs().at("x").waiting_for(desk.now));
  CHECK(desk.coordinator.runs().at("x").waiting_for(desk.now).find("60 s") != std::string::npos);
}

TEST_CASE("Coordinator: on another clock a deadline is as far away as it was", "[coordinator]") {
  Desk desk;
  desk.now = TimePoint(std::chrono::hours(300));
  desk.coordinator.replay({}, desk.now, "boot 1");
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.now += std::chrono::seconds(5);
  desk.deliver(1, Failed{0, {.rank = 0, .exit_code = 7}});  // Stopping may take 40 s.

  const auto seconds_until_lost = [&](const std::string& clock, TimePoint now) {
    Coordinator next;
    next.replay(decode_journal(desk.disk), now, clock);
    for (const LinkId link : {1, 2}) {
      (void)next.on_message(link, encode(AgentMessage(Hello{1, "x", link == 1 ? "a" : "b"})), now);
    }
    int halves = 0;
    for (; next.runs().at("x").state() == Run::State::kClosing; ++halves) {
      for (const LinkId link : {1, 2})
        (void)next.on_message(link, encode(AgentMessage(Heartbeat{0})), now);
      now += std::chrono::milliseconds(500);
      (void)next.on_tick(now);
    }
    return halves / 2;
  };
  CHECK(seconds_until_lost("boot 1", desk.now + std::chrono::seconds(25)) == 15);
  CHECK(seconds_until_lost("boot 2", TimePoint(std::chrono::seconds(7))) == 40);
  CHECK(seconds_until_lost("boot 2", TimePoint(std::chrono::hours(9000))) == 40);
}

TEST_CASE("Coordinator: a run is forgotten an hour after it ended and everybody went",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.join(2, "y", "a");
  desk.deliver(1, Finished{0});
  desk.now += std::chrono::hours(2);
  desk.deliver(2, Heartbeat{0});
  desk.show(desk.coordinator.on_tick(desk.now));
  CHECK(desk.coordinator.runs().contains("x"));  // One may still ask.
  desk.close(1);
  CHECK(desk.coordinator.snapshot(desk.now).find("\"x\"") != std::string::npos);
  desk.now += std::chrono::hours(1);
  desk.deliver(2, Heartbeat{0});
  CHECK(desk.coordinator.deadline() <= desk.now);
  desk.show(desk.coordinator.on_tick(desk.now));
  CHECK_FALSE(desk.coordinator.runs().contains("x"));
  CHECK(desk.coordinator.snapshot(desk.now).find("\"x\"") == std::string::npos);
  Coordinator next;
  next.replay(decode_journal(desk.disk), desk.now);
  CHECK_FALSE(next.runs().contains("x"));
  CHECK(next.runs().contains("y"));
}

TEST_CASE("Coordinator: a run whose node is back is not forgotten before it has gone again",
          "[coordinator]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.deliver(1, Finished{0});
  desk.close(1);
  desk.now += std::chrono::minutes(59);
  desk.deliver(2, Hello{kProtocolVersion, "x", "a"});
  desk.now += std::chrono::minutes(2);
  desk.show(desk.coordinator.on_tick(desk.now));
  CHECK(desk.coordinator.runs().contains("x"));
  desk.close(2);
  desk.now += std::chrono::hours(1);
  desk.show(desk.coordinator.on_tick(desk.now));
  CHECK_FALSE(desk.coordinator.runs().contains("x"));
}

TEST_CASE("Coordinator: a run that nobody has joined may be cancelled", "[coordinator]") {
  Desk desk;
  desk.deliver(1, Hello{kProtocolVersion, "x", "a"});
  desk.deliver(1, Heartbeat{-1});
  CHECK(desk.show(desk.coordinator.on_shutdown(15, desk.now)).empty());
  CHECK(desk.coordinator.runs().at("x").verdict()->exit_code == 143);
  CHECK(desk.deliver(1, Heartbeat{-1}) == Lines{"1 <- end"});
}

TEST_CASE("Coordinator: a run that nobody joined leaves nothing behind", "[coordinator]") {
  Desk desk;
  desk.deliver(1, Hello{kProtocolVersion, "x", "a"});
  desk.deliver(1, Heartbeat{3});
  desk.close(1);
  CHECK(desk.coordinator.runs().empty());
  desk.join(2, "x", "b", 2);
  desk.deliver(2, Leave{0, "told to"});
  desk.close(2);
  CHECK(desk.coordinator.runs().empty());
}

TEST_CASE("Coordinator: beats become rarer with the number of nodes, and patience longer",
          "[coordinator]") {
  Desk desk;
  const auto beat_of = [&](LinkId link) {
    std::vector<LinkAction> actions;
    // Where there are many, only each third is answered.
    for (int i = 0; i < 3 && actions.empty(); ++i)
      actions = desk.coordinator.on_message(link, encode(AgentMessage(Heartbeat{0})), desk.now);
    const auto message = decode_daemon_message(std::get<Send>(actions.at(0)).body);
    return std::get<Alive>(message.value()).beat;
  };
  CHECK(desk.join(1, "x", "a") == Lines{"1 <- assign"});
  CHECK(beat_of(1) == Milliseconds(250));
  for (LinkId link = 2; link <= 8000; ++link) {
    (void)desk.deliver(link, Hello{kProtocolVersion, "y", std::to_string(link)});
  }
  CHECK(beat_of(1) == Milliseconds(6400));
  desk.now += Milliseconds(9000);  // Less than four beats.
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)).empty());
  CHECK(desk.coordinator.runs().at("x").has_node("a"));
  // The others leave: it beats at the old pace once more, and may.
  for (LinkId link = 2; link <= 8000; ++link) (void)desk.close(link);
  CHECK(beat_of(1) == Milliseconds(250));
  desk.now += Milliseconds(9000);
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)).empty());
  CHECK(desk.coordinator.runs().at("x").has_node("a"));
  CHECK(beat_of(1) == Milliseconds(250));
  desk.now += Milliseconds(1000);
  (void)desk.show(desk.coordinator.on_tick(desk.now));
  CHECK_FALSE(desk.coordinator.runs().at("x").has_node("a"));
}

TEST_CASE("Coordinator: of thousands that come at once each hears what it waits for when it beats",
          "[coordinator]") {
  Desk desk;
  constexpr LinkId kNodes = 1000;
  for (LinkId link = 1; link < kNodes; ++link) {
    CHECK(desk.join(link, "x", std::to_string(link), kNodes).empty());
  }
  (void)desk.deliver(1, Heartbeat{-1});
  CHECK(desk.deliver(1, Heartbeat{-1}).empty());  // It was notified, and no node came since.
  CHECK(desk.deliver(2, Heartbeat{-1}) == Lines{"2 <- waiting"});
  CHECK(desk.join(kNodes, "x", "last", kNodes).size() == kNodes);
}

TEST_CASE("Coordinator: of many runs only those whose time has come are looked at",
          "[coordinator]") {
  Desk desk;
  for (LinkId link = 1; link <= 100; ++link) {
    (void)desk.join(link, "run" + std::to_string(link), "a", 2);
    desk.now += Milliseconds(10);
  }
  const TimePoint first = *desk.coordinator.deadline();
  CHECK(first == TimePoint(std::chrono::hours(1)) + Milliseconds(500));  // Half of its time.
  for (LinkId link = 1; link <= 50; ++link) (void)desk.close(link);      // Runs that never began.
  CHECK(*desk.coordinator.deadline() == first + Milliseconds(500));
  desk.now = first + Milliseconds(500);
  (void)desk.show(desk.coordinator.on_tick(desk.now));
  CHECK(*desk.coordinator.deadline() == first + Milliseconds(510));
  desk.now = first + Milliseconds(1000);
  (void)desk.show(desk.coordinator.on_tick(desk.now));
  CHECK_FALSE(desk.coordinator.runs().at("run51").has_node("a"));
  CHECK(desk.coordinator.runs().at("run52").has_node("a"));
}

TEST_CASE("Coordinator: a drained node stays dismissed when the daemon comes back",
          "[coordinator]") {
  Desk desk;
  (void)desk.join(1, "x", "a", 1);
  desk.disk += encode_record(Record{"x", desk.now, {"a", Drain{"fans"}}});

  Desk next;
  next.coordinator.replay(decode_journal(desk.disk), next.now);
  (void)next.deliver(1, Hello{kProtocolVersion, "x", "a"});
  CHECK(next.deliver(1, Heartbeat{0}) == Lines{"1 <- alive", "1 <- stop"});
  NodeOffer offer;
  offer.config.nnodes_max = 1;
  CHECK(next.deliver(1, Join{offer, 0}) == Lines{"1 <- dismiss"});
}

TEST_CASE("Coordinator: a daemon of one run turns agents of others away, without a word",
          "[coordinator]") {
  Desk desk;
  desk.coordinator.serve_only("job7");
  CHECK(desk.deliver(1, Hello{kProtocolVersion, "job8", "a"}) ==
        Lines{"1 hang up (it is of run 'job8', not of this one)"});
  CHECK(desk.deliver(2, Hello{kProtocolVersion, "job7", "a"}) == Lines{"2 <- alive"});
  CHECK(desk.coordinator.counters().refused.total() == 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
