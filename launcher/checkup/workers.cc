#include "launcher/checkup/workers.h"

#include <cstdlib>

#include "agent/placement/worker_environment.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::launcher {

int workers_of(const WorkerCount& wanted, const doctor::Facts& facts) {
  agent::PlacementFacts placement;
  placement.cpus = agent::usable_processors();
  placement.gpus = static_cast<int>(facts.list(doctor::fact::kGpus).size());
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible) placement.cuda_visible_devices = visible;
  const auto workers = agent::workers_per_node(to_string(wanted), placement);
  return workers ? *workers : 1;
}

}  // namespace ddprun::launcher
