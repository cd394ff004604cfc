#pragma once
// The run as one node sees it: for those that watch it on this machine while the daemon is in
// another process, and for the line below the workers' lines. Pure. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>

#include "agent/output/output.h"
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
  rendezvous::RunLedger ledger_;  // As far as somebody watches.
};

// The line that a terminal shows below the workers' lines while a run trains: made once a second,
// hidden while another line is written. Its text is that of agent/verdict/verdict_picture.h. Owned by
// Agent.
class StatusLine {
 public:
  // `began`: when the run was started here. One that is over at once never shows the line.
  StatusLine(boost::asio::io_context& loop, Output& output, TimePoint began);

  std::function<bool()> may_show;      // Whether there is something to show at this moment.
  std::function<StatusFacts()> facts;  // Asked for when a line is made.

  void start();  // Does nothing where our standard error cannot show it.
  void stop();

 private:
  void look_again();
  void show();

  Output& output_;
  const TimePoint began_;
  boost::asio::steady_timer timer_;
  bool started_ = false;
  std::string text_;
  TimePoint made_{};
};

}  // namespace ddprun::agent
