#pragma once
// Streams to ranks of other nodes that cannot be reached directly: the agent of this node gets them
// through the rendezvous daemon (docs/protocol.md, "Relayed streams of workers"). Used by GlooMesh;
// without an agent that offers them there are none.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/relay_place.h"
#include "common/system/descriptors.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class GlooRelay {
 public:
  // `give_up` ends each wait when it returns true; may be empty.
  GlooRelay(RelayPlace place, Clock::time_point deadline, std::function<bool()> give_up);

  bool is_there() const { return place_.port != 0; }
  bool is_only_way() const { return place_.always; }
  const std::string& node() const { return place_.node; }

  // Other nodes may connect to these ports of `address` through the agent, as long as the result is
  // open. Empty if the agent does not answer.
  UniqueFd open(const std::string& address, const std::vector<std::uint16_t>& ports) const;
  // Throws Error(unreachable) with the reason, and `direct`, why the peer cannot be reached
  // directly, if that has been tried.
  UniqueFd dial(const std::string& node, std::uint16_t port, const std::string& direct) const;

 private:
  UniqueFd ask(const std::string& line, std::string& answer) const;

  const RelayPlace place_;
  const Clock::time_point deadline_;
  const std::function<bool()> give_up_;
};

}  // namespace ddprun::worker_sdk
