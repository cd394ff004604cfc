#pragma once
// Folders, by the system's own calls. Not by std::filesystem: pip's libtorch shows the program a
// part of that from its own C++ runtime, and who is linked with it crashes in remove_all().

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::worker_sdk {

struct Listing {
  std::vector<std::string> names;  // Without "." and "..", in no order.
  int error = 0;                   // An errno: then these are not all.
};
Listing names_in(const std::string& folder);

// With those above it, where there are none. 0, or an errno.
int make_folders(const std::string& path);

// What can be removed of the folder and all in it; follows no links.
void remove_tree(const std::string& path);

// Of a file; nothing if there is none.
std::optional<std::uint64_t> file_bytes(const std::string& path);

}  // namespace ddprun::worker_sdk
