#pragma once
// Reads the environment of this process.

#include <cstdlib>
#include <string>

namespace ddprun {

// Empty if there is no such variable.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace ddprun
