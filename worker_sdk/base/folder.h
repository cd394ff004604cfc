#pragma once
// Folders, by the system's own calls. Not by std::filesystem: pip's libtorch exports a part of it
// from its own C++ runtime, and programs linked with that crash in remove_all().

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::worker_sdk {

struct Listing {
  std::vector<std::string> names;  // Without "." and "..", in no particular order.
  int error = 0;                   // An errno: then the names are incomplete.
};
Listing names_in(const std::string& folder);

// Creates the folder and missing ones above it. Returns 0 or an errno.
int make_folders(const std::string& path);

// Removes as much as possible of the folder and its content; follows no links.
void remove_tree(const std::string& path);

// ddprun::replace_file() of what `contents` writes, part by part, to a file of this mode. What it
// throws passes through.
using WritePart = std::function<void(std::string_view)>;
void replace_file_by_parts(const std::string& path,
                           const std::function<void(const WritePart&)>& contents, mode_t mode);

// The size of a file; std::nullopt if there is none.
std::optional<std::uint64_t> file_bytes(const std::string& path);

}  // namespace ddprun::worker_sdk
