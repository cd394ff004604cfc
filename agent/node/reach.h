#pragma once
// The ways from a node to others as a round begins. Pure. Used by the Agent with each seat.

#include <string>
#include <system_error>
#include <vector>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// Which part a node has in leading the workers' store of a round through the endpoint's port
// (docs/environment.md, "One port").
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

// What a node tries to connect to, so that a user reads within seconds, and in the verdict, which
// way is closed: the workers' own limits are minutes. Nothing waits for it. ReachProbe connects.
struct ReachTarget {
  enum class Kind {
    kStore,      // The workers' store, where this node's workers connect to it: it listens.
    kNeighbour,  // The next node. Perhaps nothing listens at that port: a refusal comes from there.
  };
  Kind kind = Kind::kStore;
  std::string host{};  // For people.
  std::string address{};
  int port = 0;
  std::string seen_at{};  // The address at which the daemon sees that node, if a router translates.
  std::string device{};   // Of this node, if data goes over another network than that of names.
};

// What this node knows of itself and of its link with the daemon.
struct ReachView {
  std::string host{};            // This node's, for people.
  bool hosts_endpoint = false;   // Other nodes are connected to it.
  std::string daemon_address{};  // Numeric, as this node has found it; empty: not known.
  int daemon_port = 0;
};

// `has_way_to_store`: one that is known to be open, the endpoint's.
std::vector<ReachTarget> reach_targets(const rendezvous::Seat& seat, const std::string& own_address,
                                       bool has_way_to_store);

enum class Reached { kYes, kNo, kAgain };
// What an attempt shows that has ended with `error`; `is_late`: there is no time for another.
Reached reached(const ReachTarget& target, const std::error_code& error, bool is_late);

// "no answer within 5 s", "Connection refused".
std::string reach_error(const std::error_code& error, Duration waited);

// "nodea does not reach nodeb at 10.0.0.2 port 41234 (no answer within 5 s): ..., and what to do.
// Without a full stop.
std::string unreachable_text(const ReachTarget& target, const ReachView& view,
                             const std::string& error);

}  // namespace ddprun::agent
