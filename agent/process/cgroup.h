#pragma once
// cgroups of version 2, if the kernel lets us make one below our own: whatever a worker forks stays
// in there, however it detaches itself, and one write kills all of it before it can fork again.
// Used by the launcher (one folder a job), PosixProcessHost (one below it an agent), the guardian
// and the keeper. No controller is requested, so any delegated subtree will do; if there is none,
// process groups, death signals and sub-reapers have to be enough.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"

namespace ddprun::agent {

// The limits of the cgroups that this process is in, of either version, from its own up to the
// root. Used by placement, by the message about a
// process that could not be started, and by the doctor's probes.

// The folders of a controller of version 1, or of version 2 if it is not mounted so, innermost
// first; by the texts of /proc/self/mountinfo and /proc/self/cgroup.
std::vector<std::string> cgroup_folders(std::string_view controller, std::string_view mountinfo,
                                        std::string_view own_cgroups);
std::vector<std::string> own_cgroup_folders(std::string_view controller);

// The first number of a file; absent: there is none, as in "max".
std::optional<std::int64_t> number_in(const std::string& path);

// The smallest difference of two files over all these folders; absent: no limit anywhere.
std::optional<std::int64_t> room_in_cgroups(std::string_view controller, const std::string& limit,
                                            const std::string& used);

// How many processors' time all of this process's cgroup gets (docker run --cpus), by the folder of
// one cgroup, or the least of all of them; absent: as much as there is.
std::optional<double> quota_in(const std::string& folder);
std::optional<double> processor_quota();

// The smallest pids.max of our cgroups (docker run --pids-limit); absent: none has one.
std::optional<std::int64_t> fewest_tasks();

// Behind a failure with that errno, as what_is_short() of common/system/limits.h: that this limit
// is nearer than ulimit -u. Empty if it is not, or the failure is another.
std::string too_few_tasks(int error, const Limits& limits, std::optional<std::int64_t> tasks);

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
