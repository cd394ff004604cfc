#pragma once
// Where the workers of this machine run: on which processors, on which GPU, with how many threads.
// Called by main for the agents' options and for --dry-run.

#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// By worker of this machine, through its local nodes; empty: nothing was asked for.
struct Placement {
  std::vector<std::vector<int>> processors;
  std::vector<int> omp_threads;
  std::vector<std::string> gpus;  // For people: "GPU 3 (0000:3b:00.0, NUMA node 1)".
  int shared_gpus = 0;            // Of --oversubscribe-gpu.
};

Result<Placement> place_workers(const Options& options, int workers_per_node, int local_nodes);

// "placement:   worker 0: GPU 0, processors 0-3, 4 threads\n"; empty if there is none.
std::string to_text(const Placement& placement, int workers_per_node);

}  // namespace ddprun::launcher
