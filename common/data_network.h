#pragma once
// Over which network the nodes of a run send data, if names lead to a slow one and all nodes have a
// faster one (docs/environment.md, "The network for data"). The daemon chooses as it seals a round;
// the doctor finds the networks that it measures. Pure.

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun {

// One of a node's networks that may lead to other nodes.
struct NodeNetwork {
  std::string interface;  // "ib0"
  std::string address;    // This node's, numeric.
  std::string subnet;     // "10.1.0.0/24"
  std::int64_t mbit = 0;  // Of the link, as its driver reports; 0: not known.
  bool is_virtual =
      false;              // A bridge, a tunnel: the speed is invented, and it may end in this host.
  bool is_named = false;  // By the user, in DDPRUN_SOCKET_IFNAME.
  bool operator==(const NodeNetwork&) const = default;
};

struct NetworksOfNode {
  std::string host;     // For people.
  std::string address;  // Where names lead.
  std::vector<NodeNetwork> networks;
};

// Through which of its interfaces a node sends and receives data.
struct DataPlace {
  std::string interface;
  std::string address;
  std::string interfaces;  // Of all networks that are as fast, "ib0,ib1": NCCL uses several.
  bool operator==(const DataPlace&) const = default;
};

struct DataNetwork {
  std::vector<DataPlace> places;  // Per node; none: data goes where names lead.
  std::string why;                // A sentence for people; empty: there is nothing to report.
  bool warns = false;             // What the user has named cannot be used.
};

// The network that users have named, if all nodes have it; else the fastest, if it is three times
// as fast as the one that names lead to. A network is shared by all nodes if they have different
// addresses in it: bridges of containers and virtual machines look alike on each host.
DataNetwork choose_data_network(const std::vector<NetworksOfNode>& nodes);

// The subnets that all nodes share, in the order of the first node.
std::vector<std::string> shared_subnets(const std::vector<NetworksOfNode>& nodes);

// The node's own network of that subnet; null: it has none.
const NodeNetwork* network_of(const NetworksOfNode& node, const std::string& subnet);

}  // namespace ddprun
