#include "common/system/own_process.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace ddprun {

std::string clock_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> time_namespace{};
  const ssize_t size =
      ::readlink("/proc/self/ns/time", time_namespace.data(), time_namespace.size());
  if (size > 0) boot += " " + std::string(time_namespace.data(), static_cast<std::size_t>(size));
  return boot;
}

}  // namespace ddprun
