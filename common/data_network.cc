#include "common/data_network.h"

#include <algorithm>
#include <map>
#include <optional>

#include "common/text/figures.h"

namespace ddprun {
namespace {

constexpr std::int64_t kWorthwhile = 3;  // Times as fast; less is not worth a surprise.

// A network that all nodes have.
struct SharedNetwork {
  std::string subnet;
  std::vector<const NodeNetwork*> of_nodes;
  std::int64_t mbit = 0;  // Of the slowest node; 0: not known of all.
  bool is_virtual = false;
  bool is_named = false;
};

// Nodes of one machine have its addresses in common, others must not.
bool are_distinct(const std::vector<NetworksOfNode>& nodes,
                  const std::vector<const NodeNetwork*>& networks) {
  std::map<std::string, std::string> machines;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto [known, is_new] = machines.try_emplace(networks[i]->address, nodes[i].address);
    if (!is_new && known->second != nodes[i].address) return false;
  }
  return true;
}

std::optional<SharedNetwork> shared(const std::vector<NetworksOfNode>& nodes,
                                    const std::string& subnet) {
  SharedNetwork found;
  found.subnet = subnet;
  bool is_known = true;
  for (const NetworksOfNode& node : nodes) {
    const NodeNetwork* own = network_of(node, subnet);
    if (!own) return std::nullopt;
    found.of_nodes.push_back(own);
    is_known = is_known && own->mbit > 0;
    found.mbit = found.of_nodes.size() == 1 ? own->mbit : std::min(found.mbit, own->mbit);
    found.is_virtual = found.is_virtual || own->is_virtual;
    found.is_named = found.is_named || own->is_named;
  }
  if (!is_known) found.mbit = 0;
  return are_distinct(nodes, found.of_nodes) ? std::optional(std::move(found)) : std::nullopt;
}

// Where names lead on that node; null: not to one of its networks.
const NodeNetwork* network_of_names(const NetworksOfNode& node) {
  const auto found = std::find_if(node.networks.begin(), node.networks.end(),
                                  [&](const auto& one) { return one.address == node.address; });
  return found == node.networks.end() ? nullptr : &*found;
}

// The speed of the slowest link to which names lead; 0: not known of all.
std::int64_t mbit_of_names(const std::vector<NetworksOfNode>& nodes) {
  std::int64_t slowest = 0;
  for (const NetworksOfNode& node : nodes) {
    const NodeNetwork* own = network_of_names(node);
    if (!own || own->mbit <= 0) return 0;
    slowest = slowest == 0 ? own->mbit : std::min(slowest, own->mbit);
  }
  return slowest;
}

std::string speed_text(std::int64_t mbit) {
  return rate_text(static_cast<double>(mbit) / 1000) + " Gb/s";
}

// `used` are the networks of data, the first of them for what uses only one.
DataNetwork placed(const std::vector<NetworksOfNode>& nodes,
                   const std::vector<const SharedNetwork*>& used) {
  DataNetwork chosen;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeNetwork& first = *used.front()->of_nodes[i];
    DataPlace place{.interface = first.interface, .address = first.address, .interfaces = {}};
    for (const SharedNetwork* one : used) {
      place.interfaces += (place.interfaces.empty() ? "" : ",") + one->of_nodes[i]->interface;
    }
    chosen.places.push_back(std::move(place));
  }
  return chosen;
}

DataNetwork named_network(const std::vector<NetworksOfNode>& nodes,
                          const std::vector<SharedNetwork>& networks) {
  for (const SharedNetwork& one : networks) {
    if (!one.is_named) continue;
    DataNetwork chosen = placed(nodes, {&one});
    const bool is_usual = std::equal(nodes.begin(), nodes.end(), one.of_nodes.begin(),
                                     [](const NetworksOfNode& node, const NodeNetwork* own) {
                                       return node.address == own->address;
                                     });
    if (is_usual) return chosen;
    chosen.why = "data goes over " + chosen.places.front().interface + " " + one.subnet +
                 ", as DDPRUN_SOCKET_IFNAME says";
    return chosen;
  }
  for (const NetworksOfNode& node : nodes) {
    for (const NodeNetwork& one : node.networks) {
      if (!one.is_named) continue;
      const auto lacking = std::find_if(nodes.begin(), nodes.end(), [&](const auto& other) {
        return !network_of(other, one.subnet);
      });
      // One with a single network lists none.
      if (lacking != nodes.end() && lacking->networks.empty()) return {};
      const std::string what = "DDPRUN_SOCKET_IFNAME=" + one.interface + " on " + node.host;
      return {.places = {},
              .why = lacking == nodes.end()
                         ? what + ": two nodes have the same address in " + one.subnet +
                               ", so it does not connect them"
                         : what + " holds for that node alone: " + lacking->host +
                               " has no address in " + one.subnet,
              .warns = true};
    }
  }
  return {};
}

DataNetwork faster_network(const std::vector<NetworksOfNode>& nodes,
                           const std::vector<SharedNetwork>& networks) {
  const std::int64_t usual = mbit_of_names(nodes);
  if (usual == 0) return {};
  std::int64_t best = 0;
  for (const SharedNetwork& one : networks) {
    if (!one.is_virtual) best = std::max(best, one.mbit);
  }
  if (best < kWorthwhile * usual) return {};
  std::vector<const SharedNetwork*> used;
  for (const SharedNetwork& one : networks) {
    if (!one.is_virtual && one.mbit == best) used.push_back(&one);
  }
  DataNetwork chosen = placed(nodes, used);
  const std::string slow = network_of_names(nodes.front())->interface;
  const std::string more =
      used.size() > 1 ? ", NCCL's over " + std::to_string(used.size()) + " such" : "";
  chosen.why = "data goes over " + chosen.places.front().interface + " " + used.front()->subnet +
               " (" + speed_text(best) + more + "), not " + slow + " (" + speed_text(usual) +
               "), to which names lead; DDPRUN_SOCKET_IFNAME=" + slow + " keeps it there";
  return chosen;
}

}  // namespace

const NodeNetwork* network_of(const NetworksOfNode& node, const std::string& subnet) {
  const auto found = std::find_if(node.networks.begin(), node.networks.end(),
                                  [&](const auto& one) { return one.subnet == subnet; });
  return found == node.networks.end() ? nullptr : &*found;
}

std::vector<std::string> shared_subnets(const std::vector<NetworksOfNode>& nodes) {
  std::vector<std::string> subnets;
  if (nodes.size() < 2) return subnets;
  for (const NodeNetwork& one : nodes.front().networks) {
    const bool is_known = std::find(subnets.begin(), subnets.end(), one.subnet) != subnets.end();
    if (!is_known && shared(nodes, one.subnet)) subnets.push_back(one.subnet);
  }
  return subnets;
}

DataNetwork choose_data_network(const std::vector<NetworksOfNode>& nodes) {
  std::vector<SharedNetwork> networks;
  for (const std::string& subnet : shared_subnets(nodes))
    networks.push_back(*shared(nodes, subnet));
  const bool any_named = std::any_of(nodes.begin(), nodes.end(), [](const NetworksOfNode& node) {
    return std::any_of(node.networks.begin(), node.networks.end(),
                       [](const NodeNetwork& one) { return one.is_named; });
  });
  if (nodes.size() < 2) return {};
  return any_named ? named_network(nodes, networks) : faster_network(nodes, networks);
}

}  // namespace ddprun
