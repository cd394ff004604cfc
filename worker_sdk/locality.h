#pragma once
// Where this process runs, so that ranks can tell whether they share a host. Never
// LOCAL_WORLD_SIZE: it says nothing of which ranks are together, and is missing without a launcher.

#include <string>

namespace ddprun::worker_sdk {

std::string host_name();

// Equal for two processes that can share memory: same boot of the same kernel, name of the host
// (`host`: what this process calls it), pid and ipc namespaces, and user.
std::string memory_domain(const std::string& host);

// Equal for two processes that have the same network interfaces, loopback among them.
std::string network_domain();

}  // namespace ddprun::worker_sdk
