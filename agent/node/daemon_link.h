#pragma once
// The agent's line to the rendezvous daemon, as the agent sees it. A remote line connects again
// whenever it breaks; an embedded one is a Coordinator in this process, for runs of a single node.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::agent {

struct DaemonAddress {
  std::string host;
  std::uint16_t port = 0;
};

class DaemonLink {
 public:
  // Called from the loop.
  struct Handlers {
    std::function<void()> on_up;  // Connected, and it is the daemon that we are connected to.
    // Was up, or one attempt failed. `answers`: the daemon's machine does, though no daemon does.
    std::function<void(const std::string& why, bool answers)> on_down;
    std::function<void(rendezvous::DaemonMessage)> on_message;
    std::function<void(const std::string& why)>
        on_fatal;  // Trying again cannot help: a wrong token.
    // The daemon sends what this ddprun cannot read: once; then only an Account still arrives.
    std::function<void(const std::string& what)> on_unreadable;
  };

  virtual ~DaemonLink() = default;
  virtual void start(Handlers handlers) = 0;
  // False: dropped, for the line is down.
  virtual bool send(const rendezvous::AgentMessage& message) = 0;
  // Flushes, closes, and then calls `done`, within two seconds.
  virtual void close(std::function<void()> done) = 0;
  virtual std::string local_address() const = 0;  // Of our end, numeric; empty if not connected.
  virtual std::string peer_address() const { return ""; }  // The same of the daemon's end.
  // Of the daemon that we are connected to, or try; nothing: there is none elsewhere.
  virtual std::optional<DaemonAddress> daemon() const { return std::nullopt; }
  // Where the run stands, with its ranks; nothing: only the daemon knows.
  virtual std::optional<rendezvous::DaemonStatus> watched() const { return std::nullopt; }
};

struct RemoteLinkOptions {
  std::string host;
  std::uint16_t port = 0;
  // Where else the daemon may be: several stand by for each other, and one at a time listens.
  std::vector<DaemonAddress> others = {};
  // At most one of them is the daemon of this run, at the others may be daemons of other runs: the
  // first that greets us is the one, and none that refuses us ends the search.
  bool are_guesses = false;
  std::string token;  // Empty: no TLS.
  std::string run_id;
  rendezvous::NodeId node;
  // For one attempt to connect, all included. A daemon to which ten thousand nodes come at once
  // needs seconds for all of them, and a node that gives up earlier only makes that longer.
  Milliseconds attempt_limit{15'000};
  // A daemon that answers no heartbeat for so long is connected anew. More if it wants few beats.
  Milliseconds silence_max{2'000};
};
std::unique_ptr<DaemonLink> remote_link(boost::asio::io_context& loop, RemoteLinkOptions options);

std::unique_ptr<DaemonLink> embedded_link(boost::asio::io_context& loop, std::string run_id,
                                          rendezvous::NodeId node);

}  // namespace ddprun::agent
