#include "agent/placement/worker_placement.h"

#include <cstddef>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

template <class T>
std::vector<T> slice(const std::vector<T>& all, int index, int workers) {
  if (all.empty()) return {};
  DDPRUN_ASSERT(index >= 0 && std::ssize(all) >= std::ptrdiff_t{index + 1} * workers);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index) * workers;
  return {begin, begin + workers};
}

}  // namespace

WorkerPlacement WorkerPlacement::of_node(int index, int workers) const {
  return {.processors = slice(processors, index, workers),
          .omp_threads = slice(omp_threads, index, workers),
          .devices = slice(devices, index, workers),
          .shared_gpus = shared_gpus};
}

}  // namespace ddprun::agent
