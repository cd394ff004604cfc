#pragma once
// Slurm's way to write many host names: "gpu[01-03,7],login" -> gpu01 gpu02 gpu03 gpu7 login. Pure.
// Called by allocation.cc.

#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::launcher {

inline constexpr std::size_t kHostListBytesMax = 131'072;  // As long as one variable can be.
inline constexpr std::size_t kHostNameBytesMax = 255;

// All names, in the order of the list, which is that of Slurm's node numbers. Several brackets in
// one name count through like the digits of a number, the last one fastest. A failure says what is
// wrong where.
Result<std::vector<std::string>> expand_host_list(std::string_view text);

}  // namespace ddprun::launcher
