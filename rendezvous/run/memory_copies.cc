#include "rendezvous/run/memory_copies.h"

#include <map>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kBeforeMax = 4;  // Of replacements that were lost before they were filled.

using Loads = std::map<NodeId, int>;  // How many copies each holder has.

int load_of(const Loads& loads, const NodeId& node) {
  const auto found = loads.find(node);
  return found == loads.end() ? 0 : found->second;
}

// The next node after `i` of those that hold the fewest copies, on another host if there is one.
std::optional<std::size_t> choose_holder(const std::vector<MemoryPeer>& nodes, std::size_t i,
                                         const Loads& loads) {
  std::optional<std::size_t> best;
  std::pair<bool, int> least;
  for (std::size_t step = 1; step < nodes.size(); ++step) {
    const std::size_t j = (i + step) % nodes.size();
    const std::pair cost(nodes[j].address == nodes[i].address, load_of(loads, nodes[j].node));
    if (!best || cost < least) best = j, least = cost;
    if (least == std::pair(false, 0)) break;
  }
  return best;
}

std::vector<NodeId> names_of(const MemoryCopy& copy) {
  std::vector<NodeId> names{copy.node};
  names.insert(names.end(), copy.before.begin(), copy.before.end());
  if (names.size() > kBeforeMax) names.resize(kBeforeMax);
  return names;
}

}  // namespace

std::vector<MemoryCopies::Order> MemoryCopies::seal(const std::vector<MemoryPeer>& nodes) {
  std::map<NodeId, std::size_t> here;
  for (std::size_t i = 0; i < nodes.size(); ++i) here[nodes[i].node] = i;
  std::map<NodeId, MemoryCopy> of_nodes;
  std::vector<MemoryCopy> lost;
  Loads loads;
  for (MemoryCopy& copy : copies) {
    const bool is_held = here.contains(copy.holder);
    if (!here.contains(copy.node)) {
      if (is_held) lost.push_back(std::move(copy));
      continue;
    }
    if (is_held) ++loads[copy.holder];
    if (!is_held) copy = {copy.node, "", {}};
    of_nodes[copy.node] = copy;
  }
  std::vector<Order> orders(nodes.size());
  auto next_lost = lost.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeId& node = nodes[i].node;
    if (of_nodes.contains(node)) continue;
    of_nodes[node] = {node, "", {}};
    if (next_lost == lost.end()) continue;
    // A new node holds nothing, so that the holder is another one; it goes on as this one's.
    const MemoryCopy& taken = *next_lost++;
    const std::vector<NodeId> names = names_of(taken);
    orders[i].fill = MemoryFill{nodes[here.at(taken.holder)], names};
    of_nodes[node] = {node, taken.holder, names};
    ++loads[taken.holder];
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    MemoryCopy& copy = of_nodes.at(nodes[i].node);
    if (copy.holder.empty()) {
      const auto holder = choose_holder(nodes, i, loads);
      if (!holder) continue;
      copy.holder = nodes[*holder].node;
      ++loads[copy.holder];
    }
    orders[i].copy_to = nodes[here.at(copy.holder)];
  }
  copies.assign(next_lost, lost.end());
  for (auto& [node, copy] : of_nodes) copies.push_back(std::move(copy));
  return orders;
}

}  // namespace ddprun::rendezvous
