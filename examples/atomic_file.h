#pragma once
// Files that are either the old one or the new one, whatever happens meanwhile. Used by train for
// its checkpoint.

#include <optional>
#include <string>
#include <string_view>

namespace examples {

// Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder. Throws std::runtime_error
// naming path and reason; then PATH is as it was, and PATH.tmp is gone.
void replace_file(const std::string& path, std::string_view contents);

// Nothing if there is no such file. Throws std::runtime_error if it cannot be read.
std::optional<std::string> read_file(const std::string& path);

}  // namespace examples
