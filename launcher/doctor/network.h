#pragma once
// Measurements between two nodes, and the facts of the network that other files read. The far ends
// of `doctor --hosts` call these functions on request (doctor.cc).

#include <cstdint>
#include <string>
#include <vector>

#include "common/data_network.h"
#include "launcher/doctor/health_report.h"
#include "launcher/doctor/node_facts.h"
#include "launcher/doctor/tcp_link.h"

namespace ddprun::doctor {

namespace fact {

inline constexpr Whole kPort{"port"};                 // Checked to be free.
inline constexpr Whole kListening{"listening_port"};  // The port on which the node serves links.
inline constexpr Text kMeetAddress{"meet_address"};   // The node's, as the endpoint sees it.

}  // namespace fact

// Serves links on any port and, as the endpoint where the nodes meet, on `endpoint` if it is not 0.
Facts serve_links(std::uint16_t endpoint, const std::string& nonce,
                  std::vector<LinkServer>& servers);

// Connects to the endpoint.
Facts meet(const Address& endpoint, const std::string& nonce);

// Connects to the node `name`, and sends data if `request` has a time for it. `subnet`: of a
// network beside that of the names.
Facts link_to(const std::string& name, const Address& address, const std::string& nonce,
              const LinkRequest& request, const std::string& subnet = {});

// What choose_data_network() wants to know of a node.
NetworksOfNode networks_of(const NodeFacts& node);
// Those that all nodes have, beside that of the names, as far as it is known.
std::vector<std::string> other_subnets(const std::vector<NetworksOfNode>& nodes);

}  // namespace ddprun::doctor
