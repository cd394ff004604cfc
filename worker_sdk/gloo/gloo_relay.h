#pragma once
// Streams to ranks of other nodes that cannot be reached directly: the agent of this node gets them
// through the rendezvous daemon (docs/protocol.md, "Relayed streams of workers"). Used by GlooMesh;
// without an agent that offers them there are none.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/ports.h"
#include "common/system/descriptors.h"
#include "ddprun/store.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class GlooRelay {
 public:
  struct Options {
    RelayPlace place{};
    std::shared_ptr<const Roster> roster{};  // Of the mesh.
    std::vector<std::string> networks{};     // By rank, network_domain(); empty: not known.
    Store* keys = nullptr;  // Of the mesh; for the nodes of ranks that can be dialled.
    Clock::time_point deadline = Clock::time_point::max();
    std::function<bool()> give_up{};  // Ends each wait when it returns true; may be empty.
  };

  explicit GlooRelay(Options options) : options_(std::move(options)) {}

  bool is_there() const { return options_.place.port != 0; }
  Clock::time_point deadline() const { return options_.deadline; }

  // Whether no direct connection to that rank is tried: --one-port, or it has this rank's address
  // in another network, as hosts behind different routers may, so that something else would answer.
  bool is_only_way(int peer, const std::string& own_address, const std::string& theirs) const;

  // Other nodes may connect to these ports of `address` through the agent, as long as the result is
  // open, and find this rank's node in the store. Empty if the agent does not answer.
  UniqueFd open(const std::string& address, const std::vector<std::uint16_t>& ports) const;
  // The node of a rank that has opened its ports and is on another node; else empty. The rank has
  // published its addresses.
  std::string other_node(int peer) const;
  // Repeats what may succeed later, such as while the daemon restarts, until the deadline. Throws
  // Error(unreachable) with the reason, and `direct`, why the peer cannot be reached directly, if
  // that has been tried.
  UniqueFd dial(int peer, const std::string& node, std::uint16_t port,
                const std::string& direct) const;

 private:
  UniqueFd ask(const std::string& line, std::string& answer) const;

  const Options options_;
};

}  // namespace ddprun::worker_sdk
