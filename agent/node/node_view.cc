#include "agent/node/node_view.h"

#include <utility>

#include "rendezvous/ledger/findings.h"

namespace ddprun::agent {

NodeView::NodeView(std::string run_id, rendezvous::NodeId node, TimePoint began)
    : run_id_(std::move(run_id)), node_(std::move(node)), began_(began) {}

void NodeView::report(const rendezvous::NodeTimes& times, TimePoint now) {
  ledger_.report(node_, times, now);
}

rendezvous::RunStatus NodeView::run(const NodeStanding& standing, TimePoint now) const {
  const rendezvous::NodeOffer& offer = standing.offer;
  rendezvous::RunStatus run{.run_id = run_id_, .state = "gathering"};
  rendezvous::NodeStatus node{.id = node_,
                              .host = offer.host,
                              .address = offer.address,
                              .phase = "ready",
                              .local_world_size = offer.local_world_size};
  run.max_restarts = offer.config.max_restarts;
  run.nnodes_min = offer.config.nnodes_min;
  run.nnodes_max = offer.config.nnodes_max;
  run.waiting_for = "only this node is shown; query the daemon for the others";
  if (const auto& seat = standing.seat) {
    run.state = standing.running ? "running" : "closing";
    run.round = seat->round;
    run.restart_count = seat->restart_count;
    run.world_size = seat->world_size;
    node.phase = standing.running ? "seated" : "stopping";
    node.group_rank = seat->group_rank;
    node.base_rank = seat->base_rank;
  }
  run.nodes.push_back(std::move(node));
  add_ledger(run, ledger_, now);
  add_ranks(run, ledger_, now);
  return run;
}

StatusFacts NodeView::status(const NodeStanding& standing, TimePoint now) const {
  StatusFacts facts{.run_id = run_id_,
                    .elapsed = std::chrono::floor<std::chrono::seconds>(now - began_)};
  if (const auto& seat = standing.seat) {
    facts.world_size = seat->world_size;
    facts.nodes = seat->group_world_size;
    facts.restart_count = seat->restart_count;
  }
  facts.max_restarts = standing.offer.config.max_restarts;
  if (const auto progress = ledger_.progress()) {
    facts.step = progress->step;
    facts.steps_per_s = progress->steps_per_s;
  }
  if (const auto late = ledger_.late(); !late.empty()) {
    facts.late_rank = late.front().rank;
    facts.late_ms = late.front().late_ms;
  }
  return facts;
}

}  // namespace ddprun::agent
