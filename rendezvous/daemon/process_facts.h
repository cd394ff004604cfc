#pragma once
// What this process uses of the machine, for the metrics.

#include <cstdint>

namespace ddprun::rendezvous {

struct ProcessFacts {
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t descriptors_max = 0;
};

ProcessFacts read_process_facts();

}  // namespace ddprun::rendezvous
