#pragma once
// Which node keeps a copy of which node's memory folder (docs/memory.md), as a run decides whenever
// it seals a round. Pure; used by Run.
//
// Every node has one holder, on another host if there is one. A holder stays the same while both
// are in the run, so that only what has changed is copied. The copy of a lost node stays with its
// holder until a new node is to be filled with it.

#include <string>
#include <vector>

#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

struct MemoryCopy {
  NodeId node;    // Whose folder is copied; perhaps lost meanwhile.
  NodeId holder;  // Who keeps the copy.
  // Under which names it may still be filed: of the nodes that `node` has replaced, newest first.
  std::vector<NodeId> before;
  bool operator==(const MemoryCopy&) const = default;
};

class MemoryCopies {
 public:
  struct Order {
    std::optional<MemoryPeer> copy_to;
    std::optional<MemoryFill> fill;
  };

  // One order per node; `nodes` are those of a round that have a memory folder, in the order of
  // their group ranks.
  std::vector<Order> seal(const std::vector<MemoryPeer>& nodes);

  // Those of lost nodes first; what a journal keeps.
  std::vector<MemoryCopy> copies;
};

}  // namespace ddprun::rendezvous
