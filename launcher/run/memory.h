#pragma once
// The memory folders of a run's nodes on this machine (--memory-folder), and the processes that
// copy them. Made before anything is forked.

#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "launcher/guard/guardian.h"
#include "launcher/run/node.h"

namespace ddprun::launcher {

// Of one node.
struct NodeMemory {
  agent::MemoryPlace place = {};
  UniqueFd listening = {};
  UniqueFd agent_end = {}, server_end = {};
  UniqueFd lock = {};  // Of the folder of all nodes here, which the first has.
};

// Makes them in `folder`, which is empty. Fails where there is not enough memory.
Result<std::vector<NodeMemory>> make_memory(const NodeContext& context, const std::string& folder);

// The size of --memory-folder beside what the file system has: a whole sentence, for exit code 2.
Result<void> check_memory(const MemoryFolder& wanted, int nodes);

// The process that copies it; `memory` outlives the run.
GuardedChild memory_child(const NodeContext& context, const NodeMemory& memory, int index);

}  // namespace ddprun::launcher
