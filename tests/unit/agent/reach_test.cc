// What a node tries to reach as a round begins, and what a user reads of what it does not reach.

#include "agent/node/reach.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Kind = ReachTarget::Kind;
using rendezvous::Neighbour;
using rendezvous::Seat;

// Of node 1 of three; node 0 has the store.
Seat seat_of_second() {
  Seat seat;
  seat.group_rank = 1;
  seat.group_world_size = 3;
  seat.master_address = "10.0.0.1";
  seat.master_port = 4001;
  seat.master_host = "a";
  seat.neighbour = Neighbour{"c", "10.0.0.3", 4003, {}};
  return seat;
}

std::string text_of(const std::vector<ReachTarget>& targets) {
  std::string text;
  for (const ReachTarget& one : targets) {
    text += (one.kind == Kind::kStore ? "store " : "node ") + one.host + " " + one.address + ":" +
            std::to_string(one.port) + (one.seen_at.empty() ? "" : " seen at " + one.seen_at) + ";";
  }
  return text;
}

TEST_CASE("Reach: a node tries the store and the next node", "[reach]") {
  CHECK(text_of(reach_targets(seat_of_second(), "10.0.0.2", false)) ==
        "store a 10.0.0.1:4001;node c 10.0.0.3:4003;");
  CHECK(text_of(reach_targets(seat_of_second(), "10.0.0.2", true)) == "node c 10.0.0.3:4003;");
  Seat first = seat_of_second();
  first.group_rank = 0;
  first.neighbour = Neighbour{"b", "10.0.0.2", 4002, "10.9.0.1"};
  CHECK(text_of(reach_targets(first, "10.0.0.1", false)) ==
        "node b 10.0.0.2:4002 seen at 10.9.0.1;");
  // Of two nodes the next one has the store.
  Seat second = seat_of_second();
  second.group_world_size = 2;
  second.neighbour = Neighbour{"a", "10.0.0.1", 4001, "10.9.0.2"};
  CHECK(text_of(reach_targets(second, "10.0.0.2", false)) ==
        "store a 10.0.0.1:4001 seen at 10.9.0.2;");
}

TEST_CASE("Reach: nothing is tried on this machine, or by a node that is alone", "[reach]") {
  Seat alone;
  CHECK(reach_targets(alone, "127.0.0.1", false).empty());
  Seat here = seat_of_second();
  here.neighbour->address = "10.0.0.2";
  here.master_address = "10.0.0.2";
  CHECK(reach_targets(here, "10.0.0.2", false).empty());
  here.neighbour->address = here.master_address = "127.0.0.1";
  CHECK(reach_targets(here, "10.0.0.2", false).empty());
  // Data goes over another network, in which this machine has another address.
  here.neighbour->address = "10.1.0.2";
  here.data = DataPlace{"ib0", "10.1.0.2", "ib0"};
  CHECK(reach_targets(here, "10.0.0.2", false).empty());
}

TEST_CASE("Reach: a refusal comes from the node itself, but not from its store", "[reach]") {
  const ReachTarget store{.kind = Kind::kStore}, node{.kind = Kind::kNeighbour};
  const auto error = [](std::errc code) { return std::make_error_code(code); };
  CHECK(reached(store, {}, false) == Reached::kYes);
  CHECK(reached(node, error(std::errc::connection_refused), false) == Reached::kYes);
  CHECK(reached(store, error(std::errc::connection_refused), false) == Reached::kAgain);
  CHECK(reached(store, error(std::errc::connection_refused), true) == Reached::kNo);
  CHECK(reached(node, error(std::errc::timed_out), true) == Reached::kNo);
  CHECK(reached(node, error(std::errc::network_unreachable), false) == Reached::kNo);
  CHECK(reach_error(error(std::errc::timed_out), 5s) == "no answer within 5 s");
  CHECK(reach_error({}, 2100ms) == "no answer within 2 s");
  CHECK(reach_error(error(std::errc::connection_refused), 5s) == "Connection refused");
}

TEST_CASE("Reach: the text names the direction, the place, the cause and the cure", "[reach]") {
  ReachTarget target{.kind = Kind::kNeighbour, .host = "b", .address = "10.0.0.2", .port = 4002};
  ReachView view{
      .host = "a", .hosts_endpoint = true, .daemon_address = "127.0.0.1", .daemon_port = 29400};
  CHECK(unreachable_text(target, view, "no answer within 5 s") ==
        "a does not reach b at 10.0.0.2 port 4002 (no answer within 5 s): b reaches a, but not the "
        "other way; does a firewall let nothing in to b? give every node --one-port, which leads "
        "all through the endpoint, or --port-range A-B and open these ports on b");
  target.seen_at = "10.9.0.1";
  CHECK(unreachable_text(target, view, "Network is unreachable") ==
        "a does not reach b at 10.0.0.2 port 4002 (Network is unreachable): the rendezvous daemon "
        "sees b at 10.9.0.1: a router translates its address (NAT); give every node --one-port, "
        "which leads all through the endpoint, or b --advertise-addr 10.9.0.1 if that router leads "
        "its ports there");
  const ReachTarget store{.kind = Kind::kStore, .host = "a", .address = "10.0.0.1", .port = 4001};
  view = {.host = "b", .hosts_endpoint = false, .daemon_address = "10.0.0.1", .daemon_port = 29400};
  CHECK(unreachable_text(store, view, "no answer within 5 s")
            .starts_with("b does not reach the workers' store on a at 10.0.0.1 port 4001 (no "
                         "answer within 5 s): port 29400 there is open; does a firewall let only "
                         "some ports through? give every node --one-port"));
  view.daemon_address = "10.9.0.1";
  CHECK(unreachable_text(store, view, "Network is unreachable")
            .find("the endpoint is reached at 10.9.0.1; if that is a router in front of a, give "
                  "every node --one-port, or a --advertise-addr 10.9.0.1") != std::string::npos);
  target.seen_at.clear();
  target.device = "ib0";
  CHECK(unreachable_text(target, view, "no answer within 5 s").find("data goes over ib0; ") !=
        std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
