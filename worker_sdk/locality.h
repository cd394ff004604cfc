#pragma once
// Where this process runs, so that ranks can tell whether they share a host. Never
// LOCAL_WORLD_SIZE: it says nothing of which ranks are together, and is missing without a launcher.

#include <string>

namespace ddprun::worker_sdk {

std::string host_name();

// Equal for two processes that can share memory: same boot of the same kernel, host name, pid and
// ipc namespaces, and user.
std::string memory_domain();

}  // namespace ddprun::worker_sdk
