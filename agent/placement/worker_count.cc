#include "agent/placement/worker_count.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "agent/placement/gpus.h"
#include "agent/placement/worker_environment.h"
#include "agent/process/cgroup.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

Failure bad_request(std::string_view request, const std::string& why) {
  return {Errc::kBadOption, "--nproc-per-node " + std::string(request) + ": " + why};
}

int usable_gpus(const PlacementFacts& facts) {
  if (facts.slices) return *facts.slices;
  return facts.cuda_visible_devices ? visible_gpus(*facts.cuda_visible_devices, facts.gpus)
                                    : facts.gpus;
}

std::string processors_text(int count) {
  return std::to_string(count) + (count == 1 ? " processor" : " processors");
}

std::string quota_text(double quota) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", std::round(quota * 100) / 100);
  return std::string("a cgroup's quota is ") + text.data() + " (docker run --cpus, a pod's limit)";
}

std::string why_no_gpu(const PlacementFacts& facts) {
  if (facts.gpus == 0) return "no NVIDIA GPU on this node; try auto, cpu or a number";
  return "CUDA_VISIBLE_DEVICES=" + facts.cuda_visible_devices.value_or("") + " hides all " +
         std::to_string(facts.gpus) + " GPUs of this node";
}

}  // namespace

int processors_for_workers(const PlacementFacts& facts) {
  if (!facts.quota || *facts.quota >= facts.cpus) return facts.cpus;
  return std::max(1, static_cast<int>(*facts.quota));
}

std::vector<std::string> count_warnings(std::string_view request, int workers,
                                        const PlacementFacts& facts, bool by_slurm) {
  std::vector<std::string> warnings;
  const int usable = processors_for_workers(facts);
  const std::string count = std::to_string(workers) + (workers == 1 ? " worker" : " workers");
  const bool by_processors = request == "cpu" || (request == "auto" && usable_gpus(facts) == 0);
  if (usable < facts.cpus && (by_processors || workers > usable)) {
    warnings.push_back(count + " on " + processors_text(usable) + " of " +
                       std::to_string(facts.cpus) + ": " + quota_text(*facts.quota));
  } else if (by_slurm && facts.cpus < facts.machine_cpus && workers > facts.cpus) {
    warnings.push_back(count + " on " + processors_text(facts.cpus) + ": Slurm gave this task " +
                       std::to_string(facts.cpus) + " of " + std::to_string(facts.machine_cpus) +
                       "; give srun --cpus-per-task, or sbatch --exclusive");
  }
  return warnings;
}

// Grows the set until the kernel's own mask fits.
int usable_processors() {
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(bits);
    const std::size_t bytes = CPU_ALLOC_SIZE(bits);
    const bool ok = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Result<int> workers_per_node(std::string_view request, const PlacementFacts& facts) {
  const int gpus = usable_gpus(facts);
  if (request == "auto") return gpus > 0 ? gpus : processors_for_workers(facts);
  if (request == "cpu") return processors_for_workers(facts);
  if (request == "gpu") {
    if (gpus > 0) return gpus;
    return bad_request(request, why_no_gpu(facts));
  }
  const auto number = as_number<int>(request);
  if (!number) return bad_request(request, "give a number, auto, gpu or cpu");
  if (*number < 1 || *number > kWorkersPerNodeMax) {
    return bad_request(request, "give 1 to " + std::to_string(kWorkersPerNodeMax) + " workers");
  }
  return *number;
}

PlacementFacts read_placement_facts(const std::string& root) {
  PlacementFacts facts;
  facts.cpus = usable_processors();
  facts.quota = processor_quota();
  facts.machine_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    facts.cuda_visible_devices = visible;
  const std::vector<Gpu> gpus = find_gpus(root);
  facts.gpus = static_cast<int>(gpus.size());
  const auto is_slice = [](const Gpu& gpu) { return gpu.is_slice; };
  if (std::any_of(gpus.begin(), gpus.end(), is_slice)) {
    facts.slices = static_cast<int>(visible_among(gpus, facts.cuda_visible_devices).size());
  }
  return facts;
}

}  // namespace ddprun::agent
