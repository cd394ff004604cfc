#pragma once
// All that is decided before anything is started: what --dry-run shows, and what a run carries out.
// Made by decide.h. Pure.

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// By worker of this machine, through its local nodes; empty: nothing was asked for.
struct Placement {
  std::vector<std::vector<int>> processors;
  std::vector<int> omp_threads;
  std::vector<std::string> gpus;  // For people: "GPU 3 (0000:3b:00.0, NUMA node 1)".
  int shared_gpus = 0;            // Of --oversubscribe-gpu.
};

struct LaunchPlan {
  Options options;
  RendezvousPlan plan;
  std::string host_name;
  std::string run_id;
  std::vector<std::string> command;  // argv[0] resolved.
  int local_world_size = 1;          // Workers a node.
  Placement placement;
};

}  // namespace ddprun::launcher
