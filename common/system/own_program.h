#pragma once
// The path of the program that this process runs.

#include <filesystem>

namespace ddprun {

// Throws std::filesystem::filesystem_error if /proc is not mounted.
inline std::filesystem::path own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace ddprun
