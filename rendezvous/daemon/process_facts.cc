#include "rendezvous/daemon/process_facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

namespace ddprun::rendezvous {

ProcessFacts read_process_facts() {
  ProcessFacts facts;
  timespec used{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0) {
    facts.cpu_seconds = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
  std::uint64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  facts.resident_bytes = resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  // One of them is the directory that is being read.
  const auto entries = error ? 1 : std::distance(begin(open), end(open));
  facts.open_descriptors = static_cast<std::uint64_t>(entries - 1);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.descriptors_max = limit.rlim_cur;
  return facts;
}

}  // namespace ddprun::rendezvous
