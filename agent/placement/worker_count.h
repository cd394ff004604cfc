#pragma once
// How many workers this node runs: --nproc-per-node as a number. Binding workers to processors is
// not done here. Pure but for read_placement_facts(). Called by the agent before it joins.

#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun::agent {

constexpr int kWorkersPerNodeMax = 4096;  // Above it a typing error is more likely than a machine.

struct PlacementFacts {
  int cpus = 1;  // That this process may run on.
  int gpus = 0;  // Present, before CUDA_VISIBLE_DEVICES.
  std::optional<std::string> cuda_visible_devices = std::nullopt;
};

// `request` is a number, "auto" (the GPUs, or the CPUs if there is none), "gpu" or "cpu".
Result<int> workers_per_node(std::string_view request, const PlacementFacts& facts);

// That this process may run on; at least 1.
int usable_processors();

// Counts without a CUDA context. `root` is where /proc and /dev are looked for.
PlacementFacts read_placement_facts(const std::string& root = "/");

}  // namespace ddprun::agent
