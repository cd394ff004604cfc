// Which streams between two nodes the daemon relays, and what ends a wait for one.

#include "rendezvous/coordinator/relays.h"

#include <catch2/catch.hpp>

#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

using Lines = std::vector<std::string>;

// A daemon with the run "job": node "b" has link 2.
struct Desk {
  Coordinator coordinator;
  TimePoint now{std::chrono::hours(1)};

  explicit Desk(bool relays = true) {
    (void)deliver(1, encode(AgentMessage(Hello{kProtocolVersion, "job", "a", "", true})));
    (void)deliver(2, encode(AgentMessage(Hello{kProtocolVersion, "job", "b", "", relays})));
  }

  Lines show(const std::vector<LinkAction>& actions) {
    coordinator.check_invariants();
    Lines lines;
    for (const LinkAction& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) {
        const auto joined = decode_joined(send->body);
        const std::string text =
            joined && joined->error.empty() ? "joined"
            : joined ? (joined->again ? "denied for now: " : "denied: ") + joined->error
                     : send->body;
        lines.push_back(std::to_string(send->link) + " <- " + text);
      } else if (const auto* bridge = std::get_if<Bridge>(&action)) {
        lines.push_back(std::to_string(bridge->dialer) + " = " + std::to_string(bridge->agent));
        slots.push_back(bridge->slot);
      } else {
        const auto& hangup = std::get<Hangup>(action);
        lines.push_back(std::to_string(hangup.link) + " hang up" +
                        (hangup.reason.empty() ? "" : " (" + hangup.reason + ")"));
      }
    }
    return lines;
  }
  Lines deliver(LinkId link, const std::string& body) {
    return show(coordinator.on_message(link, body, now));
  }
  Lines dial(LinkId link, const NodeId& node = "b", const std::string& run = "job") {
    return deliver(link, encode(RelayRequest(Dial{.run_id = run, .node = node, .port = 7000})));
  }
  Lines meet(LinkId link, std::uint64_t stream, const NodeId& node = "b",
             const std::string& error = "") {
    return deliver(link, encode(RelayRequest(Meet{
                             .run_id = "job", .node = node, .stream = stream, .error = error})));
  }

  std::vector<std::shared_ptr<void>> slots;
};

std::string order(int stream) {
  return R"(2 <- {"is":"relay","stream":)" + std::to_string(stream) + R"(,"port":7000})";
}

TEST_CASE("Relays: the agent of the node is called, and the two ends are joined", "[relays]") {
  Desk desk;
  CHECK(desk.dial(10) == Lines{order(1)});
  CHECK(desk.meet(11, 1) == Lines{"10 <- joined", "11 <- joined", "10 = 11"});
  CHECK(desk.coordinator.take_records().find("relay") == std::string::npos);
  CHECK(desk.coordinator.relays().joined("job") == 1);
  desk.slots.clear();
  CHECK(desk.coordinator.relays().joined("job") == 0);
}

TEST_CASE("Relays: a stream has one second end, that of the node which was called", "[relays]") {
  Desk desk;
  const std::string gone = "the other end of this stream is not here any more";
  CHECK(desk.dial(10) == Lines{order(1)});
  CHECK(desk.meet(11, 1, "a") == Lines{"11 <- denied: " + gone, "11 hang up"});
  CHECK(desk.meet(12, 2) == Lines{"12 <- denied: " + gone, "12 hang up"});
  CHECK(desk.meet(13, 1).size() == 3);
  CHECK(desk.meet(14, 1) == Lines{"14 <- denied: " + gone, "14 hang up"});
}

TEST_CASE("Relays: why there is no stream is passed on to the dialer", "[relays]") {
  Desk desk;
  CHECK(desk.dial(10, "c") ==
        Lines{"10 <- denied for now: the daemon has no link with node c", "10 hang up"});
  CHECK(desk.dial(11, "b", "other") ==
        Lines{"11 <- denied for now: the daemon has no link with node b", "11 hang up"});
  CHECK(desk.dial(12) == Lines{order(1)});
  CHECK(desk.meet(13, 1, "b", "port 7000 is none of this run's") ==
        Lines{"12 <- denied: port 7000 is none of this run's", "12 hang up", "13 hang up"});
  CHECK(desk.dial(14) == Lines{order(2)});
  CHECK(desk.dial(14) == Lines{"14 hang up (it has dialled twice)"});
}

TEST_CASE("Relays: a link that waits for its stream can neither meet one nor become a node's",
          "[relays]") {
  Desk desk;
  CHECK(desk.dial(10) == Lines{order(1)});
  CHECK(desk.meet(10, 1) == Lines{"10 hang up (it has dialled, and meets no stream)"});
  CHECK(desk.meet(11, 1).size() == 3);
  CHECK(desk.dial(12) == Lines{order(2)});
  const std::string hello = encode(AgentMessage(Hello{kProtocolVersion, "job", "c", "", true}));
  CHECK(desk.deliver(12, hello).back() == "12 hang up (its hello is invalid)");
  CHECK(desk.dial(13, "c").front() == "13 <- denied for now: the daemon has no link with node c");
}

TEST_CASE("Relays: an agent of an older ddprun is not called", "[relays]") {
  Desk desk(/*relays=*/false);
  CHECK(desk.dial(10) ==
        Lines{"10 <- denied: node b has an older ddprun, which cannot be dialled", "10 hang up"});
}

TEST_CASE("Relays: a second end that does not come is waited for until a deadline", "[relays]") {
  Desk desk;
  CHECK(desk.dial(10) == Lines{order(1)});
  const auto due = desk.coordinator.deadline();
  REQUIRE(due.has_value());
  CHECK(*due <= desk.now + Relays::kPatience);
  desk.now += Relays::kPatience;
  CHECK(desk.show(desk.coordinator.on_tick(desk.now)) ==
        Lines{"10 <- denied for now: node b has not answered", "10 hang up"});
  CHECK(desk.meet(11, 1).size() == 2);
}

TEST_CASE("Relays: a dialer that has closed its link is forgotten", "[relays]") {
  Desk desk;
  CHECK(desk.dial(10) == Lines{order(1)});
  (void)desk.show(desk.coordinator.on_closed(10, desk.now));
  CHECK(desk.meet(11, 1) ==
        Lines{"11 <- denied: the other end of this stream is not here any more", "11 hang up"});
}

TEST_CASE("Relays: an answer to the daemon before meets no stream of this one", "[relays]") {
  Desk desk;
  desk.coordinator.number_streams_from(70'000);
  CHECK(desk.dial(10) == Lines{order(70'000)});
  CHECK(desk.meet(11, 1).back() == "11 hang up");
  CHECK(desk.meet(12, 70'000).size() == 3);
}

TEST_CASE("Relays: a run has so many streams at most, waiting and joined", "[relays]") {
  Desk desk;
  LinkId link = 10;
  for (std::size_t i = 1; i < Relays::kStreamsMax; i += 2) {
    CHECK(desk.dial(link++).size() == 1);
    CHECK(desk.meet(link++, i).size() == 3);
    CHECK(desk.dial(link++).size() == 1);
  }
  const Lines full{
      std::to_string(link) + " <- denied: the daemon relays 256 streams of this run " + "already",
      std::to_string(link) + " hang up"};
  CHECK(desk.dial(link++) == full);
  desk.slots.pop_back();
  CHECK(desk.dial(link++).size() == 1);
}

}  // namespace
}  // namespace ddprun::rendezvous
