#pragma once
// What the files of a folder occupy.

#include <cstdint>
#include <string>

namespace ddprun {

// Bytes on disk or in memory of the files in the folder and below, each counted once though it has
// several names, or gets another one meanwhile. Follows no links, and files that vanish do not
// count. Not by std::filesystem, which pip's libtorch exports a part of.
std::uint64_t occupied_bytes(const std::string& folder);

}  // namespace ddprun
