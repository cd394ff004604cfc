#pragma once
// The folder that checkpoints are in: which exist, which are complete. Used by the writer, which
// numbers and removes them, and to find the latest.

#include <cstdint>
#include <string>
#include <vector>

#include "worker_sdk/checkpoint/manifest.h"

namespace ddprun::worker_sdk {

struct FoundCheckpoint {
  std::uint64_t number = 0;
  std::int64_t step = 0;
  std::string path;
};

// Newest first; torn ones too. None if the folder is not there. Throws Error(system).
std::vector<FoundCheckpoint> checkpoints_in(const std::string& folder);

// Of the checkpoint at `path`, as its name has it.
std::int64_t step_of(const std::string& path);

std::string checkpoint_name(std::uint64_t number, std::int64_t step);

// The manifest of the checkpoint at `path`. Throws Error(system) or Error(corrupt); the latter also
// if a file is missing or has another size.
Manifest read_manifest(const std::string& path);

// The ranks with files of a checkpoint just written that are missing or incomplete in this
// process's view of `path`. Empty if the checkpoint has been removed since.
std::vector<int> ranks_not_found(const std::string& path, const Manifest& manifest);

bool is_complete(const std::string& path);

// Of a place that is not shared: each rank writes the manifest, which is the same for all.
void write_manifest(const std::string& path, int rank, const std::string& manifest);

// Removes the checkpoints with the numbers from `first` to below `end`.
void remove_between(const std::string& folder, std::uint64_t first, std::uint64_t end);

// Leaves `keep` complete ones, and what is newer than the newest of these; and `except`.
void remove_old_checkpoints(const std::string& folder, int keep, const std::string& except);

}  // namespace ddprun::worker_sdk
