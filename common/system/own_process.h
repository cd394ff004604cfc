#pragma once
// What this process is: its program, whose clock it has, and its environment.

#include <cstdlib>
#include <fstream>
#include <string>

namespace ddprun {

// The path of the program that this process runs. Throws std::filesystem::filesystem_error if /proc
// is not mounted.
std::string own_program();

// Each start of this machine has another one.
inline std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Of which clock a process's times are (std::chrono::steady_clock): each boot has its own, and a
// container may. Times of two processes can be compared if the names are equal.
std::string clock_name();

// Empty if there is no such variable.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace ddprun
