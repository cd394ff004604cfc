#pragma once
// Folders, by the system's own calls. Not by std::filesystem: pip's libtorch exports a part of it
// from its own C++ runtime, and programs linked with that crash in remove_all().

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun {

struct Listing {
  std::vector<std::string> names;  // Without "." and "..", in order.
  int error = 0;                   // An errno: then the names are incomplete.
};
Listing names_in(const std::string& folder);

// Creates the folder and missing ones above it. Returns 0 or an errno.
int make_folders(const std::string& path, mode_t mode = 0777);

// The same, for this user only.
Result<void> make_private_folders(const std::string& path);

// Removes as much as possible of the folder and its content; follows no links.
void remove_tree(const std::string& path);

// The size of a file; std::nullopt if there is none.
std::optional<std::uint64_t> file_bytes(const std::string& path);

// Bytes on disk or in memory of the files in the folder and below, each counted once though it has
// several names, or gets another one meanwhile. Follows no links, and files that vanish do not
// count.
std::uint64_t occupied_bytes(const std::string& folder);

}  // namespace ddprun
