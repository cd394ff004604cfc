// Which nodes open and forward the workers' store with --one-port, as rounds change its place.

#include "agent/node/store_way.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

TEST_CASE("StoreWay: the node with the store opens it, the others forward to it", "[store_way]") {
  rendezvous::Seat seat{.group_rank = 1, .master_node = "a"};
  CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kForwards);
  seat.group_rank = 0;  // In a later round, when node a is lost.
  CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kOpens);
}

TEST_CASE("StoreWay: a store that all reach directly is neither opened nor forwarded",
          "[store_way]") {
  for (const int group_rank : {0, 1}) {
    rendezvous::Seat seat{.group_rank = group_rank, .master_node = "a"};
    CHECK(store_way(seat, /*one_port=*/false) == StoreWay::kDirect);
    seat.store_at_endpoint = true;
    CHECK(store_way(seat, /*one_port=*/true) == StoreWay::kDirect);
  }
  CHECK(store_way({.group_rank = 1}, /*one_port=*/true) == StoreWay::kDirect);  // An older daemon.
}

}  // namespace
}  // namespace ddprun::agent
