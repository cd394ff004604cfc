// What operators ask of a Coordinator and what it counts.

#include <catch2/catch.hpp>

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/net/turnstile.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Verb = Command::Verb;

struct Desk {
  Coordinator coordinator;
  TimePoint now{1h};

  void deliver(LinkId link, const AgentMessage& message) {
    (void)coordinator.on_message(link, encode(message), now);
  }
  void join(LinkId link, const std::string& run, const NodeId& node, int nodes = 1) {
    deliver(link, Hello{kProtocolVersion, run, node});
    NodeOffer offer;
    offer.host = "host-" + node;
    offer.config.nnodes_min = offer.config.nnodes_max = nodes;
    deliver(link, Join{offer, -1});
  }

  // One of the two nodes, of which one would do, of run 'x'.
  void join_elastic(LinkId link, const NodeId& node) {
    deliver(link, Hello{kProtocolVersion, "x", node});
    NodeOffer offer;
    offer.host = "host-" + node;
    offer.config.nnodes_min = 1;
    offer.config.nnodes_max = 2;
    deliver(link, Join{offer, -1});
  }

  // The whole answer to a command, which ends with a hang-up and concerns no other connection
  // before that; "no: ..." if it was refused.
  std::string query(const Command& command) {
    constexpr LinkId kLink = 99;
    std::string text;
    bool more = true;
    sent_to.clear();
    for (const LinkAction& action : coordinator.on_message(kLink, encode(command), now)) {
      const auto* send = std::get_if<Send>(&action);
      if (send && send->link != kLink) {
        sent_to.push_back(send->link);
      } else if (send) {
        const Answer report = decode_answer(send->body).value();
        CHECK(more);
        more = report.more;
        text += report.error.empty() ? report.text : "no: " + report.error;
      } else {
        CHECK_FALSE(more);
        CHECK(std::get<Hangup>(action).reason.empty());
      }
    }
    return text;
  }

  const Counters& counted() const { return coordinator.counters(); }
  std::uint64_t refused(Refusal refusal) const { return counted().refused.of(refusal); }

  std::vector<LinkId> sent_to;  // Others, by the last command.
};

TEST_CASE("Command: what is encoded decodes to the same, anything else is refused", "[command]") {
  const Command command{3, Verb::kDrain, "job", "h\"\n", "bad fan", 2, true};
  CHECK(encode(decode_command(encode(command)).value()) == encode(command));
  const Answer report{"no", "text", true};
  CHECK(encode(decode_answer(encode(report)).value()) == encode(report));

  const auto why = [](std::string_view body) {
    const auto decoded = decode_command(body);
    return decoded ? "accepted" : decoded.error().context;
  };
  CHECK(why("") == "decoding a message that is not a JSON object");
  CHECK(why(R"({"is":"report"})") == "decoding field 'is' of 'command'");
  CHECK(why(R"({"is":"command"})") == "decoding field 'version' of 'command'");
  CHECK(why(R"({"is":"command","version":1e9})") == "decoding field 'version' of 'command'");
  CHECK(why(R"({"is":"command","version":1,"verb":"halt"})") ==
        "decoding field 'verb' of 'command'");
  CHECK(why(encode(Command{.run_id = std::string(300, 'x')})) ==
        "decoding field 'run_id' of 'command'");
  CHECK(why(std::string(100'000, '[')) == "decoding a message that is not a JSON object");
  const std::string whole = encode(command);
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    CHECK(decode_command(whole.substr(0, cut)).has_error());
  }
}

TEST_CASE("Command: status tells of all runs, or of one", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.join(2, "y", "b", 2);
  const auto all = decode_status(desk.query({})).value();
  REQUIRE(all.runs.size() == 2);
  CHECK(all.runs[0].run_id == "x");
  CHECK(all.runs[0].state == "running");
  const auto one = decode_status(desk.query({.run_id = "y"})).value();
  REQUIRE(one.runs.size() == 1);
  CHECK(one.runs[0].waiting_for.starts_with("waiting for nodes: 1 of 2 here (host-b)"));
  CHECK(desk.query({.run_id = "z"}) == "no: there is no run 'z' here; there are: x, y");
  CHECK(Desk().query({.run_id = "z"}) == "no: there is no run 'z' here; there is none at all");
  CHECK(desk.query({.version = 77}).find("install the same ddprun") != std::string::npos);
}

TEST_CASE("Command: a reason reaches nodes and verdict as one line that gives no orders",
          "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.query({.verb = Verb::kCancel, .run_id = "x", .reason = "by me: \x1b[2Jy\nddprun: forged"});
  const auto run = desk.coordinator.runs().find("x");
  REQUIRE(run != desk.coordinator.runs().end());
  CHECK(run->second.verdict()->text == "by me: ?[2Jy?ddprun: forged");
}

TEST_CASE("Hello: a run id with control characters is refused", "[command]") {
  Desk desk;
  for (const char* id : {"a\nb", "a\x1b]0;x\x07", "a\xc2\x9b[2J", "a\x7f"}) {
    desk.join(1, id, "a");
    CHECK(desk.coordinator.runs().empty());
  }
  CHECK(desk.refused(Refusal::kBadHello) == 4);
}

TEST_CASE("Command: whoever watches sees the ranks and what happened", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  PlaceTimes place{.rank = 0, .at = TimePart::kForward, .steps = 10};
  desk.deliver(1, Heartbeat{.round = 0, .times = NodeTimes{.places = {place}}});
  desk.now += 4s;
  place.steps = 30;
  place.late = 400ms;
  desk.deliver(1, Heartbeat{.round = 0, .times = NodeTimes{.places = {place}}});
  const auto all = decode_status(desk.query({.verb = Verb::kWatch})).value();
  REQUIRE(all.runs.at(0).nodes.at(0).ranks.size() == 1);
  const RankStatus& rank = all.runs[0].nodes[0].ranks[0];
  CHECK(rank.at == "forward");
  CHECK(rank.steps == 30);
  CHECK(rank.steps_per_s == Approx(5));
  CHECK(rank.late_ms == Approx(20));
  REQUIRE(all.runs[0].late.has_value());
  REQUIRE(all.runs[0].late->size() == 1);
  CHECK(all.runs[0].late->at(0).host == "host-a");
  CHECK(all.runs[0].late->at(0).late_ms == Approx(20));
  CHECK(all.runs[0].late->at(0).late_s == Approx(0.4));
  CHECK(all.runs[0].step == 30);
  CHECK(all.runs[0].steps_per_s == Approx(5));
  REQUIRE_FALSE(all.runs[0].events.empty());
  CHECK(all.runs[0].events.size() <= 20);
  for (LinkId i = 0; i < 50; ++i) desk.join(100 + i, "x", "late" + std::to_string(i));
  CHECK(decode_status(desk.query({.verb = Verb::kWatch})).value().runs.at(0).events.size() == 20);
  const auto plain = decode_status(desk.query({})).value();
  CHECK(plain.runs.at(0).nodes.at(0).ranks.empty());
  CHECK(plain.runs[0].events.empty());
  CHECK(plain.runs[0].step == 30);
  CHECK(plain.runs[0].late.value().size() == 1);
}

TEST_CASE("Command: a late rank has the phase of its last window, not of all", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  const auto beat = [&](std::uint64_t steps, Milliseconds late, LateCounts counts) {
    const PlaceTimes place{.rank = 0, .at = TimePart::kForward, .steps = steps, .late = late};
    Heartbeat heartbeat{.round = 0, .times = NodeTimes{.places = {place}}};
    heartbeat.sync = SyncIncrease{.late = {{.rank = 0, .counts = counts}}};
    desk.deliver(1, heartbeat);
    desk.now += 4s;
    return decode_status(desk.query({})).value().runs.at(0).late;
  };
  CHECK(beat(10, 0ms, {}).value().empty());
  CHECK(beat(50, 900ms, {{"steps", 9}, {"forward_ns", 900'000'000}}).value().at(0).phase ==
        "forward");
  CHECK(beat(90, 1300ms, {{"steps", 9}, {"data_ns", 300'000'000}, {"backward_ns", 100'000'000}})
            .value()
            .at(0)
            .phase == "data");
  CHECK(beat(200, 1300ms, {}).value().empty());
}

TEST_CASE("Command: before a step is known, so is nobody who is late", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  CHECK_FALSE(decode_status(desk.query({})).value().runs.at(0).late.has_value());
  desk.deliver(1, Heartbeat{.round = 0, .times = NodeTimes{.places = {{.rank = 0}}}});
  CHECK_FALSE(decode_status(desk.query({})).value().runs.at(0).late.has_value());
}

TEST_CASE("Command: an answer too long for one frame comes in pieces", "[command]") {
  Desk desk;
  for (LinkId i = 0; i < 2'000; ++i) desk.join(100 + i, "x", "node" + std::to_string(i), 5'000);
  const std::string text = desk.query({});
  CHECK(text.size() > 200'000);
  CHECK(decode_status(text).value().runs.at(0).nodes.size() == 2'000);
}

TEST_CASE("Command: whoever gives one is no agent", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.deliver(1, Finished{0});
  (void)desk.coordinator.on_closed(1, desk.now);
  (void)desk.query({});
  CHECK(desk.coordinator.over());
  // An agent cannot command on its own link.
  desk.join(2, "y", "b");
  const auto actions = desk.coordinator.on_message(2, encode(Command{}), desk.now);
  REQUIRE(actions.size() == 2);
  CHECK(std::holds_alternative<Send>(actions[0]));  // It is refused, as what cannot be read.
  CHECK(std::holds_alternative<Hangup>(actions[1]));
}

TEST_CASE("Command: cancel ends a run, once, and is remembered", "[command]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.join(2, "y", "b");
  const Command cancel{.verb = Verb::kCancel, .run_id = "x", .reason = "cancelled by alice@head"};
  CHECK(desk.query(cancel) == "run 'x' is cancelled; its workers are being stopped");
  CHECK(desk.sent_to == std::vector<LinkId>{1});
  CHECK(desk.query(cancel) == "no: run 'x' is over already: cancelled by alice@head");
  CHECK(desk.coordinator.runs().at("y").state() == Run::State::kRunning);
  CHECK(desk.query({.verb = Verb::kCancel}) == "no: name the run to cancel");

  Coordinator next;
  next.replay(decode_journal(desk.coordinator.take_records()), desk.now);
  CHECK(next.runs().at("x").verdict()->text == "cancelled by alice@head");
}

TEST_CASE("Command: drain of a node that others can do without says so", "[command]") {
  Desk desk;
  desk.join_elastic(1, "a");
  desk.join_elastic(2, "b");
  const Command drain{.verb = Verb::kDrain, .node = "host-b", .reason = "drained by alice@head"};
  CHECK(desk.query(drain) == "host-b (b) of run 'x' is drained: the run continues without it");
}

TEST_CASE("Command: drain of the last node that has a job's state has to be meant", "[command]") {
  Desk desk;
  desk.join_elastic(1, "a");
  desk.join_elastic(2, "b");
  Command drain{.verb = Verb::kDrain, .node = "host-a", .reason = "drained by alice@head"};
  desk.deliver(1, Slots{1, 0, 1});
  SECTION("it is the only one") {
    CHECK(
        desk.query(drain).starts_with("no: host-a (a) of run 'x' has the only workers that have "
                                      "the state of this job;"));
    CHECK(desk.sent_to.empty());
    drain.force = true;
    CHECK(desk.query(drain) == "host-a (a) of run 'x' is drained: the run continues without it");
    CHECK_FALSE(desk.sent_to.empty());
  }
  SECTION("another one has it, too") {
    desk.deliver(2, Slots{1, 0, 1});
    CHECK(desk.query(drain) == "host-a (a) of run 'x' is drained: the run continues without it");
    drain.node = "host-b";  // It is the last now.
    CHECK(desk.query(drain).find("add --force") != std::string::npos);
  }
}

TEST_CASE("Command: drain takes the one node that is meant, or says which it may be", "[command]") {
  Desk desk;
  desk.join(1, "x", "a", 2);
  desk.join(2, "x", "b", 2);
  desk.join(3, "y", "a");
  Command drain{.verb = Verb::kDrain, .node = "host-a", .reason = "drained by alice@head"};
  CHECK(desk.query(drain) ==
        "no: 'host-a' may be host-a (a) of run 'x', host-a (a) of run 'y'; name one by its id, or "
        "the run too");
  CHECK(desk.sent_to.empty());
  drain.node = "host-z";
  CHECK(desk.query(drain).starts_with(
      "no: there is no node 'host-z' in a run that has not ended; there "
      "are: host-a (a) of run 'x', host-b"));
  drain.node = "b";
  CHECK(desk.query(drain) ==
        "host-b (b) of run 'x' is drained: the run waits 10 min for another node");
  CHECK(desk.sent_to == std::vector<LinkId>{1, 2});  // Both stop; b will not join again.
  CHECK(desk.counted().nodes_lost == decltype(Counters::nodes_lost){});

  Coordinator next;
  next.replay(decode_journal(desk.coordinator.take_records()), desk.now);
  CHECK(next.runs().at("x").state() == Run::State::kGathering);
}

TEST_CASE("Counters: messages, rounds, restarts, losses and verdicts", "[counters]") {
  Desk desk;
  NodeOffer offer;
  offer.config.nnodes_min = 1;
  offer.config.nnodes_max = 2;
  offer.config.max_restarts = 1;
  for (LinkId link = 1; link <= 2; ++link) {
    desk.deliver(link, Hello{kProtocolVersion, "x", link == 1 ? "a" : "b"});
    desk.deliver(link, Join{offer, -1});
  }
  CHECK(desk.counted().rounds_sealed == 1);
  desk.deliver(1, Failed{0, WorkerDeath{.rank = 0, .exit_code = 1}});
  CHECK(desk.counted().restarts == 1);
  desk.deliver(1, Join{offer, 0});
  desk.deliver(2, Join{offer, 0});
  CHECK(desk.counted().rounds_sealed == 2);
  (void)desk.coordinator.on_closed(1, desk.now);
  CHECK(desk.counted().nodes_lost[static_cast<std::size_t>(LostBy::kClosed)] == 1);
  desk.deliver(2, Join{offer, 1});
  desk.now += 10min;
  (void)desk.coordinator.on_tick(desk.now);
  CHECK(desk.counted().nodes_lost[static_cast<std::size_t>(LostBy::kSilent)] == 1);
  desk.join(3, "y", "c");
  desk.deliver(3, Finished{0});
  (void)desk.coordinator.on_closed(3, desk.now);  // Its run is over: no node is lost.
  CHECK(desk.counted().nodes_lost[static_cast<std::size_t>(LostBy::kClosed)] == 1);
  CHECK(desk.counted().verdicts[static_cast<std::size_t>(Verdict::Kind::kSuccess)] == 1);
  CHECK(desk.counted().messages[AgentMessage(Hello{}).index()] == 3);
  CHECK(desk.counted().messages[AgentMessage(Join{}).index()] == 6);
  const std::string records = desk.coordinator.take_records();
  CHECK(desk.counted().record_bytes == records.size());
  CHECK(desk.counted().records ==
        static_cast<std::uint64_t>(std::count(records.begin(), records.end(), '\n')));
}

TEST_CASE("Counters: nodes that cannot stop in time are lost as stuck", "[counters]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.deliver(1, Failed{0, WorkerDeath{.rank = 0, .exit_code = 1}});
  for (int i = 0; i < 100; ++i) {  // Beats go on; only the workers stay.
    desk.now += 500ms;
    desk.deliver(1, Heartbeat{0});
    (void)desk.coordinator.on_tick(desk.now);
  }
  CHECK(desk.counted().nodes_lost[static_cast<std::size_t>(LostBy::kStuck)] == 1);
  CHECK(desk.counted().verdicts[static_cast<std::size_t>(Verdict::Kind::kWorkerFailed)] == 1);
}

TEST_CASE("Counters: whoever is sent away is counted by reason", "[counters]") {
  Desk desk;
  (void)desk.coordinator.on_message(1, "\x16\x03\x01", desk.now);
  desk.deliver(2, Heartbeat{0});
  desk.deliver(3, Hello{kProtocolVersion + 1, "x", "a"});
  desk.deliver(4, Hello{kProtocolVersion, "", "a"});
  CHECK(desk.refused(Refusal::kBadMessage) == 1);
  CHECK(desk.refused(Refusal::kNoHello) == 1);
  CHECK(desk.refused(Refusal::kOtherVersion) == 1);
  CHECK(desk.refused(Refusal::kBadHello) == 1);
  CHECK(desk.counted().refused.total() == 4);
  CHECK(refusal_of(make_error_code(Errc::kBadToken)) == Refusal::kWrongToken);
  CHECK(refusal_of(make_error_code(Errc::kPeerSilent)) == Refusal::kHandshakeTimeout);
}

TEST_CASE("News: a run's life can be read in the log", "[counters]") {
  Desk desk;
  desk.join(1, "x", "a");
  desk.deliver(1, Finished{0});
  std::vector<std::string> lines;
  for (const News& news : desk.coordinator.take_news()) {
    lines.push_back(news.run_id + " " + news.node + " " + news.text);
  }
  CHECK(lines == std::vector<std::string>{"x a a node joined",
                                          "x  round 0 runs: nodes 1, workers 1, restarts 0",
                                          "x  the run ended: every worker exited with 0"});
  CHECK(desk.coordinator.take_news().empty());
}

TEST_CASE("Complaints: each once a minute, few in all, and what is left out is counted",
          "[complaints]") {
  Complaints complaints;
  const TimePoint start{1h};
  CHECK(complaints.filter("a", "line", start) == "line");
  CHECK_FALSE(complaints.filter("a", "line", start + 59s).has_value());
  CHECK(complaints.filter("b", "other", start + 59s) ==
        "other (1 such lines were omitted before this one)");
  CHECK(complaints.filter("a", "line", start + 60s) == "line");
  int logged = 0;
  for (int i = 0; i < 1'000; ++i) {
    logged += complaints.filter(std::to_string(i), "scan", start + 61s).has_value() ? 1 : 0;
  }
  CHECK(logged == static_cast<int>(Complaints::kLinesPerWindow) - 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
