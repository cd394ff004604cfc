#pragma once
// The limits of the cgroups that this process is in, of either version, from its own up to the
// root. Used by placement, by the message about a
// process that could not be started, and by the doctor's probes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/system/limits.h"

namespace ddprun::agent {

// The folders of a controller of version 1, or of version 2 where it is not mounted so, innermost
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

}  // namespace ddprun::agent
