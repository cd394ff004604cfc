#pragma once

#include <cstddef>

namespace ddprun {

// Raises this process's soft limit on open descriptors to its hard limit, and returns it. A daemon
// needs one for each agent, an agent several for each worker; the usual soft limit of 1,024 is for
// programs that select(). With `wanted`, the hard limit too, where this process may.
std::size_t raise_descriptor_limit(std::size_t wanted = 0);

}  // namespace ddprun
