// Processors and memory, what cgroups leave of them, and what the kernel says of both.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "agent/placement/worker_environment.h"
#include "agent/process/cgroup.h"
#include "agent/process/family.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/probe/probe.h"

namespace ddprun::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKib = 1024;
constexpr std::int64_t kNoMemoryLimit = std::int64_t{1} << 60;  // Version 1 writes such numbers.

std::optional<std::int64_t> available_memory() {
  std::istringstream lines(agent::read_proc_file("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) return kib * kKib;
  }
  return std::nullopt;
}

// What may be given back at once: files that were read, and are not used.
std::int64_t reclaimable(const std::string& folder) {
  std::istringstream lines(agent::read_proc_file(folder + "/memory.stat"));
  std::int64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    long long value = 0;
    const bool v1 = std::sscanf(line.c_str(), "total_inactive_file %lld", &value) == 1;
    if (v1 || std::sscanf(line.c_str(), "inactive_file %lld", &value) == 1) bytes = value;
  }
  return bytes;
}

std::optional<std::int64_t> memory_in_cgroups() {
  std::optional<std::int64_t> least;
  for (const std::string& folder : agent::own_cgroup_folders("memory")) {
    auto limit = agent::number_in(folder + "/memory.max"),
         used = agent::number_in(folder + "/memory.current");
    if (!limit) limit = agent::number_in(folder + "/memory.limit_in_bytes");
    if (!used) used = agent::number_in(folder + "/memory.usage_in_bytes");
    if (!limit || !used || *limit >= kNoMemoryLimit) continue;
    const std::int64_t left = std::max<std::int64_t>(*limit - *used + reclaimable(folder), 0);
    if (!least || left < *least) least = left;
  }
  return least;
}

void find_quota(Facts& facts) {
  if (const auto quota = agent::processor_quota()) facts.set(fact::kQuota, *quota);
}

void find_memory(Facts& facts) {
  const auto machine = available_memory(), cgroup = memory_in_cgroups();
  if (!machine && !cgroup) return;
  const bool limited = cgroup && (!machine || *cgroup < *machine);
  facts.set(fact::kMemoryLeft, limited ? *cgroup : *machine);
  facts.set(fact::kMemoryBy, std::string(limited ? "cgroup" : "machine"));
}

std::string line_of(const std::string& path) {
  std::string text = agent::read_proc_file(path);
  return text.substr(0, text.find('\n'));
}

void find_memory_errors(Facts& facts) {
  std::int64_t errors = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/sys/devices/system/edac/mc", error), end;
       !error && entry != end; entry.increment(error)) {
    errors += agent::number_in(entry->path().string() + "/ue_count").value_or(0);
  }
  facts.set(fact::kMemoryErrors, errors);
}

}  // namespace

void probe_cpu(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kProcessors, std::int64_t{agent::usable_processors()});
  find_quota(facts);
  find_memory(facts);
  find_memory_errors(facts);
  const std::string frequency = "/sys/devices/system/cpu/cpu0/cpufreq/";
  facts.set(fact::kGovernor, line_of(frequency + "scaling_governor"));
  facts.set(fact::kGovernorDriver, line_of(frequency + "scaling_driver"));
  const std::string own = agent::own_cgroup_folder();
  const bool ours = !own.empty() && ::access(own.c_str(), W_OK) == 0 &&
                    ::access((own + "/cgroup.procs").c_str(), W_OK) == 0;
  facts.set(fact::kCgroup, ours ? own : "");
}

}  // namespace ddprun::doctor
