#pragma once
// Is this still the process that joined? A forked child has a copy of everything, and shares what
// it must not use: shared memory, sockets, the page to the agent. ProcessGroup asks with each call.

#include <cstdint>

namespace ddprun::worker_sdk {

// How many forks lie between this process and the one in which it was called first. Two equal
// answers came from one process. As cheap as reading a variable, once it has been called.
std::uint64_t fork_count() noexcept;

}  // namespace ddprun::worker_sdk
