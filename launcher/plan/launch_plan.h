#pragma once
// All that is decided before anything is started: what --dry-run shows, and what a run carries out.
// Made by decide.h. Pure.

#include <string>
#include <vector>

#include "agent/placement/worker_placement.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// By worker of this machine, through its local nodes.
struct Placement : agent::WorkerPlacement {
  std::vector<std::string> gpus = {};  // For people: "GPU 3 (0000:3b:00.0, NUMA node 1)".
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
