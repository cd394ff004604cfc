#pragma once
// Files that are either the old one or the new one, whatever happens meanwhile: for a checkpoint
// that rank 0 writes. (checkpoint.h has those that all ranks write.)

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

/// Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder. Throws Error(system) naming
/// path and reason; then PATH is as it was, and PATH.tmp is gone. One writer a path.
void replace_file(const std::string& path, std::string_view contents);

/// Nothing if there is no such file. Throws Error(system) if it cannot be read.
std::optional<std::string> read_file(const std::string& path);

/// What was created, renamed or removed in the folder stays so after a loss of power. Throws
/// Error(system).
void sync_folder(const std::string& folder);

}  // namespace ddprun
