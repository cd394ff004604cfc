#pragma once
// What this process is: its program, and whose clock it has.

#include <filesystem>
#include <string>

namespace ddprun {

// The path of the program that this process runs. Throws std::filesystem::filesystem_error if /proc
// is not mounted.
inline std::filesystem::path own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

// Of which clock a process's times are (std::chrono::steady_clock): each boot has its own, and a
// container may. Times of two processes can be compared if the names are equal.
std::string clock_name();

}  // namespace ddprun
