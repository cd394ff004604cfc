#pragma once
// All decisions before anything is started: shown by --dry-run, carried out by a run. Made by
// decide.h. Pure.

#include <string>
#include <vector>

#include "agent/placement/worker_placement.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {

// By worker of this machine, through its local nodes.
struct Placement : agent::WorkerPlacement {
  std::vector<std::string> gpus = {};  // To show: "GPU 3 (0000:3b:00.0, NUMA node 1)".
};

struct LaunchPlan {
  Options options;
  RendezvousPlan plan;
  std::string host_name;
  std::string run_id;
  std::vector<std::string> command;  // argv[0] resolved.
  int local_world_size = 1;          // Workers per node.
  Placement placement;
};

}  // namespace ddprun::launcher
