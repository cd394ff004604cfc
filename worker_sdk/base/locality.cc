#include "worker_sdk/base/locality.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/system/held_process.h"
#include "common/system/own_process.h"

namespace ddprun::worker_sdk {
namespace {

std::string namespace_of(const char* path) {
  struct stat status {};
  if (::stat(path, &status) != 0) return "?";
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string memory_domain(const std::string& host) {
  return boot_id() + " " + host + " " + namespace_of("/proc/self/ns/pid") + " " +
         namespace_of("/proc/self/ns/ipc") + " " + std::to_string(::geteuid());
}

std::string network_domain() { return boot_id() + " " + namespace_of("/proc/self/ns/net"); }

std::string hold_processes(const std::vector<std::int32_t>& pids, std::vector<UniqueFd>& held) {
  for (const std::int32_t pid : pids) {
    if (pid == ::getpid()) {
      held.emplace_back();
      continue;
    }
    held.push_back(hold_process(pid));
    if (!held.back()) {
      return "watching process " + std::to_string(pid) + ": " + std::strerror(errno);
    }
  }
  return {};
}

bool has_ended(std::int32_t pid, std::chrono::milliseconds patience) {
  const UniqueFd process = hold_process(pid);
  return process ? ends_within(process, patience) : errno == ESRCH;
}

}  // namespace ddprun::worker_sdk
