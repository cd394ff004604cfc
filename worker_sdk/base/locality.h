#pragma once
// Where this process runs, so that ranks can find out whether they share a host. Does not use
// LOCAL_WORLD_SIZE: it does not show which ranks are together, and is missing without a launcher.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {

std::string host_name();

// Equal for two processes that can share memory: same boot of the same kernel, name of the host
// (`host`: its name for this process), pid and ipc namespaces, and user.
std::string memory_domain(const std::string& host);

// Equal for two processes that have the same network interfaces, loopback among them.
std::string network_domain();

// Holds these processes of this host (common/system/held_process.h), so that their end is noticed:
// by position, empty for this process, which cannot end without its threads. Returns an empty text,
// or why the last one in `held` is not.
std::string hold_processes(const std::vector<std::int32_t>& pids, std::vector<UniqueFd>& held);

// Whether a process of this host is gone or a zombie, or becomes so within `patience`.
bool has_ended(std::int32_t pid, std::chrono::milliseconds patience);

}  // namespace ddprun::worker_sdk
