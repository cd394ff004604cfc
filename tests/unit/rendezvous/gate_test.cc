#include "rendezvous/coordinator/gate.h"

#include <catch2/catch.hpp>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// A Gate before a log that is as slow as the test likes.
struct Door {
  Gate gate;
  TimePoint now{1h};
  std::string written;
  int unwritten = 0;

  Lines show(Gate::Work work) {
    gate.check_invariants();
    written += work.records;
    unwritten += work.records.empty() ? 0 : 1;
    Lines lines;
    for (const LinkAction& action : work.actions) {
      const auto* send = std::get_if<Send>(&action);
      const auto message = send ? decode_daemon_message(send->body) : decode_daemon_message("");
      if (send) REQUIRE(message.has_value());
      lines.push_back(send ? to_string(RunAction{std::to_string(send->link), *message})
                           : std::to_string(std::get<Hangup>(action).link) + " hang up");
      lines.back() = lines.back().substr(0, lines.back().find_first_of(" ,", 5));
    }
    return lines;
  }
  Lines deliver(LinkId link, const AgentMessage& message) {
    return show(gate.on_message(link, encode(message), now));
  }
  Lines hello(LinkId link, const NodeId& node) {
    return deliver(link, Hello{kProtocolVersion, "x", node});
  }
  Lines join(LinkId link, const NodeId& node) {
    NodeOffer offer;
    offer.host = node;
    offer.config.nnodes_min = offer.config.nnodes_max = 2;
    return deliver(link, Join{offer, -1});
  }
  Lines durable() {
    --unwritten;
    return show(gate.on_durable(now));
  }
  // Two nodes with their seats.
  void seat_two() {
    hello(1, "a"), hello(2, "b"), join(1, "a"), join(2, "b");
    while (unwritten > 0) durable();
  }
};

TEST_CASE("Gate: nothing goes out before its record is durable, and all in order", "[gate]") {
  Door door;
  CHECK(door.hello(1, "a") == Lines{"1 <- alive"});
  CHECK(door.join(1, "a").empty());
  CHECK(door.hello(2, "b").empty());  // Makes no record, and yet keeps its place.
  CHECK(door.join(2, "b").empty());
  CHECK(door.unwritten == 2);
  CHECK(door.durable() == Lines{"1 <- waiting", "2 <- alive"});
  CHECK(door.durable() == Lines{"1 <- assign", "2 <- assign"});
  CHECK(door.deliver(1, Heartbeat{0}) == Lines{"1 <- alive"});
}

TEST_CASE("Gate: while the log stalls nothing is decided and heartbeats are answered", "[gate]") {
  Door door;
  door.seat_two();
  CHECK(door.deliver(1, Failed{0, {.rank = 0, .exit_code = 7}}).empty());
  door.now += 501ms;
  const std::string before = door.written;
  CHECK(door.deliver(2, Heartbeat{0}) == Lines{"2 <- alive"});
  CHECK(door.deliver(2, Stopped{0, {}}).empty());
  CHECK_FALSE(door.gate.deadline());
  door.now += 1h;  // No node is lost for a silence that was ours.
  CHECK(door.show(door.gate.on_tick(door.now)).empty());
  CHECK(door.written == before);
  CHECK(door.durable() == Lines{"1 <- stop", "2 <- stop"});
  CHECK(door.written != before);  // Recovered, and what node b had sent.
  CHECK(door.durable().empty());
  CHECK(door.show(door.gate.on_tick(door.now)).empty());
  CHECK(door.gate.idle());
}

TEST_CASE("Gate: an agent that came back on a new connection during a stall is not lost",
          "[gate]") {
  Door door;
  door.seat_two();
  CHECK(door.deliver(1, Leave{0, "told to"}).empty());
  door.now += 600ms;
  CHECK(door.show(door.gate.on_closed(2, door.now)).empty());
  CHECK(door.hello(3, "b") == Lines{"3 <- alive"});
  door.durable();
  while (door.unwritten > 0) door.durable();
  CHECK(door.gate.coordinator().runs().at("x").has_node("b"));
  CHECK_FALSE(door.gate.coordinator().runs().at("x").has_node("a"));
}

TEST_CASE("Gate: who says too much while nothing can be recorded is hung up on", "[gate]") {
  Door door;
  door.seat_two();
  CHECK(door.deliver(1, Finished{0}).empty());
  door.now += 600ms;
  const std::string large(1 << 20, 'x');
  for (std::size_t i = 0; i < Gate::kHeldBytesMax / large.size(); ++i) {
    REQUIRE(door.show(door.gate.on_message(1, large, door.now)).empty());
  }
  CHECK(door.show(door.gate.on_message(2, large, door.now)) == Lines{"2 hang"});
  CHECK(door.deliver(2, Heartbeat{0}) == Lines{"2 <- alive"});
}

}  // namespace
}  // namespace ddprun::rendezvous
