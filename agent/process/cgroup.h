#pragma once
// cgroups of version 2, where the kernel lets us make one below our own: whatever a worker forks
// stays in there, however it detaches itself, and one write kills all of it before it can fork
// again. Used by the launcher (one folder a job), PosixProcessHost (one below it an agent), the
// guardian and the keeper. No controller is asked for, so any delegated subtree will do; where
// there is none, process groups, death signals and sub-reapers have to be enough.

#include <string>
#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

// Our own folder in the tree of version 2, by /proc/self/mountinfo and /proc/self/cgroup; empty if
// no such tree is mounted. Serves the hybrid layout of systemd too, as in /sys/fs/cgroup/unified.
std::string cgroup_folder(std::string_view mountinfo, std::string_view own_cgroups);
std::string own_cgroup_folder();

// Makes it, or parent/name, and returns its path. Empty: nowhere.
Result<std::string> make_cgroup(const std::string& path);
inline Result<std::string> make_cgroup(const std::string& parent, const std::string& name) {
  return make_cgroup(parent.empty() ? "" : parent + "/" + name);
}

// The folder of the job of one launcher, and where it is, or would be; empty: nowhere.
inline std::string job_cgroup_name(int launcher) { return "ddprun-" + std::to_string(launcher); }
std::string job_cgroup_path(int launcher);

// The folder of one agent's workers in the folder of the job.
inline std::string agent_cgroup_name(int agent) { return "agent-" + std::to_string(agent); }

// To start processes in it.
Result<UniqueFd> open_cgroup(const std::string& path);

// SIGKILLs everything in it and below it at once. False if there is no such folder, or the kernel
// is older than 5.14.
bool kill_cgroup(const std::string& path);

// With everything below it. What still has processes stays. True if nothing of it is left.
bool remove_cgroup(const std::string& path);

}  // namespace ddprun::agent
