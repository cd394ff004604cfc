#pragma once
// Which part a node has in leading the workers' store of a round through the endpoint's port
// (docs/environment.md, "One port"). Pure. Used by the Agent with each seat.

#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

enum class StoreWay {
  kDirect,    // None: workers connect to the store as to any other.
  kOpens,     // It has the store, which other nodes may dial.
  kForwards,  // Its workers connect to a port here, which leads to the node with the store.
  kUnknown,   // As kDirect: an older daemon does not name the node with the store.
};

inline StoreWay store_way(const rendezvous::Seat& seat, bool one_port) {
  if (!one_port || seat.store_at_endpoint) return StoreWay::kDirect;
  if (seat.group_rank == 0) return StoreWay::kOpens;
  return seat.master_node.empty() ? StoreWay::kUnknown : StoreWay::kForwards;
}

}  // namespace ddprun::agent
