#include "launcher/plan/placement.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "agent/placement/gpus.h"
#include "agent/placement/topology.h"
#include "agent/process/cgroup.h"
#include "common/assert.h"

namespace ddprun::launcher {
namespace {

std::vector<agent::Gpu> visible_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return agent::visible_among(agent::find_gpus(),
                              visible ? std::optional<std::string>(visible) : std::nullopt);
}

// If there are as many workers as GPUs, each gets one; a number of workers may also mean to use
// none.
bool means_gpus(const Options& options, const std::vector<agent::Gpu>& gpus) {
  const std::string count = to_string(options.nproc_per_node);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool named = visible && std::string_view(visible).find("MIG-") != std::string_view::npos;
  const bool any =
      std::any_of(gpus.begin(), gpus.end(), [](const agent::Gpu& gpu) { return gpu.is_slice; });
  return any && (named || count == "gpu" || count == "auto" || options.oversubscribe_gpu);
}

std::string gpu_text(std::size_t index, const agent::Gpu& gpu) {
  std::string text = "GPU " + std::to_string(index);
  if (gpu.is_slice) text += " (" + gpu.uuid + ")";
  if (gpu.bus_id.empty()) return text;
  text += " (" + gpu.bus_id;
  if (gpu.numa_node >= 0) text += ", NUMA node " + std::to_string(gpu.numa_node);
  return text + ")";
}

// Assigns a GPU to each worker: the one of its local rank, or in turns.
void place_on_gpus(const Options& options, const std::vector<agent::Gpu>& gpus, int workers,
                   int local_nodes, Placement& placement, std::vector<int>& numa_nodes) {
  DDPRUN_ASSERT(!options.oversubscribe_gpu || !gpus.empty());
  const bool one_each = means_gpus(options, gpus);
  for (int worker = 0; worker < workers * local_nodes; ++worker) {
    auto gpu = static_cast<std::size_t>(worker % workers);
    if (options.oversubscribe_gpu) gpu %= gpus.size();
    const bool has = gpu < gpus.size();
    numa_nodes.push_back(has ? gpus[gpu].numa_node : -1);
    placement.gpus.push_back(has ? gpu_text(gpu, gpus[gpu]) : "no GPU");
    if (one_each) placement.devices.push_back(has ? gpus[gpu].uuid : "");
  }
}

Result<void> bind_to_processors(const Options& options, const std::vector<int>& numa_nodes,
                                Placement& placement) {
  const auto machine = agent::read_machine();
  if (!machine) return machine.error();
  auto bound = agent::bind_workers(*machine, options.numa_binding, numa_nodes);
  if (!bound) return bound.error();
  if (options.numa_binding != agent::NumaBinding::kNone) placement.processors = *bound;
  DDPRUN_ASSERT(bound->size() == numa_nodes.size());
  if (options.omp_num_threads != 0) return {};
  std::vector<int> all;
  for (const agent::NumaNode& node : machine->nodes) {
    for (const auto& core : node.cores) all.insert(all.end(), core.begin(), core.end());
  }
  const auto quota = agent::processor_quota();
  const int by_quota = quota ? static_cast<int>(*quota / static_cast<double>(bound->size()))
                             : std::numeric_limits<int>::max();
  for (const std::vector<int>& own : *bound) {
    // Workers with the same processors share them.
    const std::vector<int>& processors = own.empty() ? all : own;
    const auto sharers = static_cast<int>(std::count(bound->begin(), bound->end(), own));
    const int threads = std::min(agent::count_cores(*machine, processors) / sharers, by_quota);
    placement.omp_threads.push_back(std::max(1, threads));
  }
  return {};
}

}  // namespace

Result<Placement> place_workers(const Options& options, int workers_per_node, int local_nodes) {
  Placement placement;
  DDPRUN_ASSERT(workers_per_node >= 1 && local_nodes >= 1);
  const int workers = workers_per_node * local_nodes;
  const bool binds = options.numa_binding != agent::NumaBinding::kNone;
  if (options.omp_num_threads.value_or(0) > 0) {
    placement.omp_threads.assign(static_cast<std::size_t>(workers), *options.omp_num_threads);
  }
  const std::vector<agent::Gpu> gpus = visible_gpus();
  const bool by_gpu = options.oversubscribe_gpu || means_gpus(options, gpus);
  if (!binds && !by_gpu && options.omp_num_threads != 0) return placement;
  if (options.oversubscribe_gpu && gpus.empty()) {
    return Failure{Errc::kBadOption, "--oversubscribe-gpu: there is no NVIDIA GPU to share here"};
  }
  if (options.oversubscribe_gpu) placement.shared_gpus = static_cast<int>(gpus.size());
  std::vector<int> numa_nodes;
  place_on_gpus(options, gpus, workers_per_node, local_nodes, placement, numa_nodes);
  if (!binds && options.omp_num_threads != 0) return placement;
  const auto bound = bind_to_processors(options, numa_nodes, placement);
  if (!bound) return bound.error();
  return placement;
}

std::string slices_text(const Placement& placement, int slices) {
  if (slices == 0 && placement.devices.empty()) return "";
  if (!placement.devices.empty()) {
    return "the GPUs are in MIG mode: each worker sees one slice (CUDA_VISIBLE_DEVICES=MIG-...), "
           "and has LOCAL_RANK=0";
  }
  return "the GPUs are in MIG mode, of which a process can use one slice, and all workers see the "
         "same first one; --nproc-per-node gpu gives each of " +
         std::to_string(slices) + " workers its own";
}

std::string to_text(const Placement& placement, int workers_per_node) {
  std::string text;
  const std::size_t workers =
      std::max({placement.processors.size(), placement.omp_threads.size(), placement.gpus.size()});
  for (std::size_t i = 0; i < workers; ++i) {
    const auto per_node = static_cast<std::size_t>(workers_per_node);
    text += (i == 0 ? "placement:   " : "             ");
    if (workers > per_node) text += "node " + std::to_string(i / per_node) + " ";
    text += "local rank " + std::to_string(i % per_node) + ":";
    if (i < placement.gpus.size()) text += " " + placement.gpus[i];
    if (i < placement.processors.size())
      text += ", processors " + agent::processors_text(placement.processors[i]);
    if (i < placement.omp_threads.size())
      text += ", OMP_NUM_THREADS=" + std::to_string(placement.omp_threads[i]);
    text += "\n";
  }
  return text;
}

}  // namespace ddprun::launcher
