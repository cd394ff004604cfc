#include "worker_sdk/worker/process_age.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace ddprun::worker_sdk {
namespace {

using std::chrono::nanoseconds;

// After boot; nothing if the system does not say.
std::optional<nanoseconds> start_of_process() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const auto name_ends = line.rfind(')');  // A name may hold anything.
  if (name_ends == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_ends + 1));
  std::string skipped;
  long long ticks = -1;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  fields >> ticks;
  if (!fields) return std::nullopt;
  return nanoseconds(ticks * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
}

}  // namespace

nanoseconds process_age() {
  static const pid_t first_caller = ::getpid();
  static const std::optional<nanoseconds> known = start_of_process();
  // A child that was forked from a process that has called this is younger.
  const auto started = first_caller == ::getpid() ? known : start_of_process();
  timespec now{};
  if (!started || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const nanoseconds up = std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
  return std::max(up - *started, nanoseconds{0});
}

}  // namespace ddprun::worker_sdk
