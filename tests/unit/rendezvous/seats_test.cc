#include "rendezvous/run/seats.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {
namespace {

NodeOffer offer(const std::string& host, int workers, const std::string& role = "default") {
  NodeOffer offer;
  offer.host = host;
  offer.address = host + ".net";
  offer.store_port = 29500;
  offer.local_world_size = workers;
  offer.role = role;
  return offer;
}

TEST_CASE("Seats: ranks and role ranks are counted through uneven nodes", "[seats]") {
  const NodeOffer a = offer("a", 2, "trainer"), b = offer("b", 1, "reader"),
                  c = offer("c", 3, "trainer");
  const auto seats = assign_seats({&a, &b, &c}, 5, 2);
  REQUIRE(seats.size() == 3);
  CHECK(seats[2].base_rank == 3);
  CHECK(seats[2].world_size == 6);
  CHECK(seats[2].role_base_rank == 2);
  CHECK(seats[2].role_world_size == 5);
  CHECK(seats[1].role_base_rank == 0);
  CHECK(seats[1].role_world_size == 1);
  CHECK(seats[1].master_address == "a.net");
  CHECK(seats[1].restart_count == 2);
  CHECK(seats[0].members == std::vector<std::string>{"a.net", "b.net", "c.net"});
  CHECK(seats[1].members.empty());  // Only the node with the store needs to know them.
}

TEST_CASE("Seats: each node knows the next one, and the store admits routers in front of nodes",
          "[seats]") {
  const NodeOffer a = offer("a", 1);
  NodeOffer b = offer("b", 1);
  b.seen_at = "10.9.0.1";
  const auto seats = assign_seats({&a, &b}, 0, 0);
  CHECK(seats[0].neighbour == Neighbour{"b", "b.net", 29500, "10.9.0.1"});
  CHECK(seats[1].neighbour == Neighbour{"a", "a.net", 29500, ""});
  CHECK(seats[1].master_host == "a");
  CHECK(seats[0].members == std::vector<std::string>{"a.net", "b.net", "10.9.0.1"});
  CHECK_FALSE(assign_seats({&a}, 0, 0)[0].neighbour);
}

TEST_CASE("Run: data, copies of memory folders and neighbours use the network that is chosen",
          "[seats]") {
  Run run;
  std::vector<Seat> seats;
  for (int i = 1; i <= 2; ++i) {
    const std::string last = std::to_string(i);
    Join join;
    join.offer = offer(i == 1 ? "a" : "b", 1);
    join.offer.address = "10.0.0." + last;
    join.offer.memory_port = 4000 + i;
    join.offer.config.nnodes_min = join.offer.config.nnodes_max = 2;
    join.offer.networks = {{"eth0", "10.0.0." + last, "10.0.0.0/24", 1'000},
                           {"ib0", "10.1.0." + last, "10.1.0.0/24", 100'000}};
    for (const RunAction& action : run.step({"node" + last, join}, TimePoint(Milliseconds(i)))) {
      const auto* assign = std::get_if<Assign>(&action.message);
      if (assign) seats.push_back(assign->seat);
    }
  }
  REQUIRE(seats.size() == 2);
  CHECK(seats[0].master_address == "10.0.0.1");
  CHECK(seats[0].data_why.starts_with("data goes over ib0 10.1.0.0/24"));
  CHECK(seats[1].data_why.empty());
  CHECK(seats[1].data == DataPlace{"ib0", "10.1.0.2", "ib0"});
  CHECK(seats[0].neighbour->address == "10.1.0.2");
  CHECK(seats[1].neighbour->address == "10.1.0.1");
  CHECK(seats[0].copy_to->address == "10.1.0.2");
}

TEST_CASE("Seats: nodes of the round before keep their order, the endpoint's host leads the rest",
          "[seats]") {
  NodeOffer host = offer("host", 1), x = offer("x", 1), y = offer("y", 1), z = offer("z", 1);
  host.hosts_endpoint = true;
  CHECK(order_nodes({{&x, -1, 0}, {&y, -1, 1}, {&host, -1, 2}}) ==
        std::vector<std::size_t>{2, 0, 1});
  CHECK(order_nodes({{&x, 1, 0}, {&y, 0, 1}, {&host, -1, 2}}) == std::vector<std::size_t>{1, 0, 2});
  z.node_rank = 7;  // Beyond the end of a round of three: as if untold.
  x.node_rank = 1;
  CHECK(order_nodes({{&x, -1, 0}, {&y, -1, 1}, {&z, -1, 2}}) == std::vector<std::size_t>{1, 0, 2});
}

TEST_CASE("Seats: every order is a permutation that honours told ranks", "[seats]") {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t n = 1 + random() % 6;
    std::vector<NodeOffer> offers(n);
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < n; ++i) {
      offers[i].node_rank = static_cast<int>(random() % (n + 2)) - 1;
      offers[i].hosts_endpoint = random() % 3 == 0;
      candidates.push_back({&offers[i], static_cast<int>(random() % 4) - 1, static_cast<int>(i)});
    }
    auto order = order_nodes(candidates);
    REQUIRE(order.size() == n);
    for (std::size_t place = 0; place < n; ++place) {
      const auto with_rank = std::count_if(offers.begin(), offers.end(), [&](const NodeOffer& o) {
        return o.node_rank == static_cast<int>(place);
      });
      if (with_rank > 0) CHECK(offers[order[place]].node_rank == static_cast<int>(place));
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < n; ++i) CHECK(order[i] == i);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
