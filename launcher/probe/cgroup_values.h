#pragma once
// The limits of the cgroups that this process is in, of either version, from its own up to the
// root. Used by the probes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::doctor {

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

}  // namespace ddprun::doctor
