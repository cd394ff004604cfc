#pragma once
// What each of a machine's workers runs on, as it is decided before any of them starts. Pure. The
// launcher decides for all of its nodes, each agent gets the part of its own.

#include <string>
#include <vector>

namespace ddprun::agent {

// By worker; empty: nothing was requested.
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
