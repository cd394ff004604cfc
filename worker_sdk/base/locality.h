#pragma once
// Where this process runs, so that ranks can tell whether they share a host. Never
// LOCAL_WORLD_SIZE: it says nothing of which ranks are together, and is missing without a launcher.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {

std::string host_name();

// Equal for two processes that can share memory: same boot of the same kernel, name of the host
// (`host`: what this process calls it), pid and ipc namespaces, and user.
std::string memory_domain(const std::string& host);

// Equal for two processes that have the same network interfaces, loopback among them.
std::string network_domain();

// Opens what tells when these processes of this host end: by position, empty for this process,
// which cannot end without its threads. Returns why that cannot be, of the last one in `pidfds`;
// nothing if it can.
std::string open_pidfds(const std::vector<std::int32_t>& pids, std::vector<UniqueFd>& pidfds);

// Whether a process of this host is gone or a zombie, or will be before `patience` is over.
bool has_ended(std::int32_t pid, std::chrono::milliseconds patience);

}  // namespace ddprun::worker_sdk
