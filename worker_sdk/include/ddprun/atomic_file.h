#pragma once
// Replaces files atomically: a reader finds the old or the new content, also after a crash. For a
// checkpoint that rank 0 writes; checkpoint.h has checkpoints that all ranks write.

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

/// Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder. On failure leaves PATH
/// unchanged, removes PATH.tmp and throws Error(system) with path and reason. Only one writer per
/// path at a time.
void replace_file(const std::string& path, std::string_view contents);

/// The content of a file; empty optional if it does not exist. Throws Error(system) if it cannot be
/// read.
std::optional<std::string> read_file(const std::string& path);

/// Makes creations, renames and removals in the folder survive a loss of power. Throws
/// Error(system).
void sync_folder(const std::string& folder);

}  // namespace ddprun
