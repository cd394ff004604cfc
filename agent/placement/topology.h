#pragma once
// The machine's NUMA nodes, sockets, cores and caches, by hwloc, which is loaded at run time: only
// --numa-binding and --omp-num-threads auto need it.

#include "agent/placement/binding.h"

namespace ddprun::agent {

// Of this machine, as far as this process may use it; or, for tests, what hwloc makes of a
// synthetic description such as "pack:2 numa:1 l3:2 core:4 pu:2".
Result<Machine> read_machine(const std::string& synthetic = {});

}  // namespace ddprun::agent
