#pragma once
// How many workers this node runs: --nproc-per-node as a number. Binding workers to processors is
// not done here. Pure but for read_placement_facts(). Called by the agent before it joins.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

constexpr int kWorkersPerNodeMax = 4096;  // Above it a typing error is more likely than a machine.

struct PlacementFacts {
  int cpus = 1;  // That this process may run on.
  int gpus = 0;  // Present, before CUDA_VISIBLE_DEVICES.
  std::optional<std::string> cuda_visible_devices = std::nullopt;
  std::optional<double> quota = std::nullopt;  // Of a cgroup, in processors (docker run --cpus).
  int machine_cpus = 0;                        // That are online; 0: unknown.
  // Of MIG, that CUDA_VISIBLE_DEVICES leaves, and cards beside them that have none; absent: no GPU
  // is in MIG mode.
  std::optional<int> slices = std::nullopt;
};

// The processors that workers get: those they may run on, or fewer by the quota.
int processors_for_workers(const PlacementFacts& facts);

// What limits the workers more than the user may know, as sentences; `workers`: on this machine.
// `by_slurm`: it has started this.
std::vector<std::string> count_warnings(std::string_view request, int workers,
                                        const PlacementFacts& facts, bool by_slurm);

// `request` is a number, "auto" (the GPUs, or the CPUs if there is none), "gpu" or "cpu".
Result<int> workers_per_node(std::string_view request, const PlacementFacts& facts);

// That this process may run on; at least 1.
int usable_processors();

// Counts without a CUDA context. /proc and /dev are read below `root`.
PlacementFacts read_placement_facts(const std::string& root = "/");

}  // namespace ddprun::agent
