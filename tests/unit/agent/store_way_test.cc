// Which nodes open and forward the workers' store with --one-port, as rounds change its place.

#include "agent/node/reach.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

rendezvous::Seat seat_of(int group_rank, const rendezvous::NodeId& master_node) {
  rendezvous::Seat seat;
  seat.group_rank = group_rank;
  seat.master_node = master_node;
  return seat;
}

TEST_CASE("StoreWay: the node with the store opens it, the others forward to it", "[store_way]") {
  rendezvous::Seat seat = seat_of(1, "a");
  CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kForwards);
  seat.group_rank = 0;  // In a later round, when node a is lost.
  CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kOpens);
}

TEST_CASE("StoreWay: a store that all reach directly is neither opened nor forwarded",
          "[store_way]") {
  for (const int group_rank : {0, 1}) {
    rendezvous::Seat seat = seat_of(group_rank, "a");
    CHECK(store_way(seat, /*one_port=*/false) == StoreWay::kDirect);
    seat.store_at_endpoint = true;
    CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kDirect);
  }
}

TEST_CASE("StoreWay: an older daemon does not name the node with the store", "[store_way]") {
  CHECK(store_way(seat_of(1, ""), /*one_port=*/true) == StoreWay::kUnknown);
  CHECK(store_way(seat_of(1, ""), /*one_port=*/false) == StoreWay::kDirect);
}

}  // namespace
}  // namespace ddprun::agent
