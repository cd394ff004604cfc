#pragma once
// Which processors each worker of this machine may use: --numa-binding, with torch's words and
// rules (torch/numa/binding.py), and what else a worker runs on. Pure; topology.h reads the
// machine, the launcher calls.
//
//   node          all processors of the NUMA node of the worker's GPU
//   socket        all processors of that node's socket
//   exclusive     an equal share of that node's cores, the first workers getting what is over
//   core-complex  those that share one last-level cache of that node, workers taking turns
//
// A worker without a GPU, or with one that no node is known of, is given a node by its place among
// the workers: the first nodes get the first of them.

#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

enum class NumaBinding { kNone, kNode, kSocket, kExclusive, kCoreComplex };

struct NumaNode {
  int number = 0;  // As the system counts.
  int socket = 0;
  std::vector<std::vector<int>> cores;   // Each with its processors; only such as we may use.
  std::vector<std::vector<int>> caches;  // The processors behind each last-level cache.
};

struct Machine {
  std::vector<NumaNode> nodes;  // Only those with processors that we may use.
};

// The processors of each worker, ascending. `node_of_worker` has the NUMA node of each worker's
// GPU, or -1. An error if "exclusive" has more workers on a node than cores.
Result<std::vector<std::vector<int>>> bind_workers(const Machine& machine, NumaBinding binding,
                                                   const std::vector<int>& node_of_worker);

// Physical cores among these processors: what OMP_NUM_THREADS=auto means.
int count_cores(const Machine& machine, const std::vector<int>& processors);

// "0-3,8": as in /sys and taskset.
std::string processors_text(const std::vector<int>& processors);

// What each of a machine's workers runs on, as it is decided before any of them starts. The
// launcher decides for all of its nodes, each agent gets the part of its own. By worker; empty:
// nothing was requested.
struct WorkerPlacement {
  std::vector<std::vector<int>> processors = {};  // Empty: not bound.
  std::vector<int> omp_threads = {};              // Empty: torchrun's rule.
  // CUDA_VISIBLE_DEVICES, each for a worker that is to see this one alone, as its GPU 0: a slice of
  // MIG, for CUDA would give all of them the first.
  std::vector<std::string> devices = {};
  int shared_gpus = 0;  // That ranks share, see WorkerContext; of --oversubscribe-gpu.

  // Those of the `index`th of nodes with `workers` each.
  WorkerPlacement of_node(int index, int workers) const;
};

}  // namespace ddprun::agent
