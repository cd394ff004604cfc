#pragma once
// Slurm's way to write many host names: "gpu[01-03,7],login" -> gpu01 gpu02 gpu03 gpu7 login. Pure.
// Called by slurm_step.cc.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::scheduler {

inline constexpr std::size_t kHostListBytesMax = 131'072;  // The longest possible variable.
inline constexpr std::size_t kHostNameBytesMax = 255;
inline constexpr int kListedHostsMax = 131'072;

// All names, in the order of the list, which is that of Slurm's node numbers. Several brackets in
// one name count like the digits of a number, the last one fastest. A failure names the mistake and
// its place.
Result<std::vector<std::string>> expand_host_list(std::string_view text);

}  // namespace ddprun::scheduler
