#pragma once
// The run as one node sees it: for those that watch it on this machine while the daemon is in
// another process, and for the line below the workers' lines. Pure. Owned by Agent.

#include <optional>
#include <string>

#include "agent/verdict/verdict_picture.h"
#include "common/time.h"
#include "rendezvous/ledger/run_ledger.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::agent {

// Where the node stands at one moment.
struct NodeStanding {
  const rendezvous::NodeOffer& offer;
  const std::optional<rendezvous::Seat>& seat;  // Nothing: it has never had one.
  bool running = false;                         // Its workers compute.
};

class NodeView {
 public:
  NodeView(std::string run_id, rendezvous::NodeId node, TimePoint began);

  const rendezvous::NodeId& node() const { return node_; }

  // What the node's own ledger has.
  void report(const rendezvous::NodeTimes& times, TimePoint now);

  rendezvous::RunStatus run(const NodeStanding& standing, TimePoint now) const;
  StatusFacts status(const NodeStanding& standing, TimePoint now) const;

 private:
  const std::string run_id_;
  const rendezvous::NodeId node_;
  const TimePoint began_;
  rendezvous::RunLedger ledger_;  // As far as it is watched.
};

}  // namespace ddprun::agent
