#include "agent/placement/worker_count.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <thread>

#include "agent/placement/gpu_list.h"
#include "agent/placement/gpus.h"

namespace ddprun::agent {
namespace {

Failure bad_request(std::string_view request, const std::string& why) {
  return {Errc::kBadOption, "--nproc-per-node " + std::string(request) + ": " + why};
}

int usable_gpus(const PlacementFacts& facts) {
  return facts.cuda_visible_devices ? visible_gpus(*facts.cuda_visible_devices, facts.gpus)
                                    : facts.gpus;
}

std::string why_no_gpu(const PlacementFacts& facts) {
  if (facts.gpus == 0) return "no NVIDIA GPU on this node; try auto, cpu or a number";
  return "CUDA_VISIBLE_DEVICES=" + facts.cuda_visible_devices.value_or("") + " hides all " +
         std::to_string(facts.gpus) + " GPUs of this node";
}

}  // namespace

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
  if (request == "auto") return gpus > 0 ? gpus : facts.cpus;
  if (request == "cpu") return facts.cpus;
  if (request == "gpu") {
    if (gpus > 0) return gpus;
    return bad_request(request, why_no_gpu(facts));
  }
  int number = 0;
  const char* const last = request.data() + request.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): from_chars takes both ends.
  const auto [end, error] = std::from_chars(request.data(), last, number);
  if (error != std::errc() || end != last)
    return bad_request(request, "give a number, auto, gpu or cpu");
  if (number < 1 || number > kWorkersPerNodeMax) {
    return bad_request(request, "give 1 to " + std::to_string(kWorkersPerNodeMax) + " workers");
  }
  return number;
}

PlacementFacts read_placement_facts(const std::string& root) {
  PlacementFacts facts;
  facts.cpus = usable_processors();
  facts.gpus = static_cast<int>(find_gpus(root).size());
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    facts.cuda_visible_devices = visible;
  return facts;
}

}  // namespace ddprun::agent
