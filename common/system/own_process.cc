#include "common/system/own_process.h"

#include <unistd.h>

#include <array>
#include <filesystem>

namespace ddprun {

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string clock_name() {
  std::string name = boot_id();
  std::array<char, 64> time_namespace{};
  const ssize_t size =
      ::readlink("/proc/self/ns/time", time_namespace.data(), time_namespace.size());
  if (size > 0) name += " " + std::string(time_namespace.data(), static_cast<std::size_t>(size));
  return name;
}

}  // namespace ddprun
