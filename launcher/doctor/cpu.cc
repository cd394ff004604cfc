// Processors and memory, what cgroups leave of them, and what the kernel says of both.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

#include "agent/placement/worker_count.h"
#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/hash.h"
#include "launcher/doctor/probes.h"

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

// How fast this node computes and copies, and which bits come out. The best of many short pieces is
// what the hardware can; other load shows in the others.

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChunks = 60;
constexpr int kRounds = 100'000;  // Of a chunk: about a millisecond.
constexpr int kCopies = 24;
constexpr std::size_t kCopyBytes = 8u << 20;  // More than caches hold.
constexpr std::size_t kInputs = 50'000;

double milliseconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

// A chain of dependent operations: no compiler takes it apart, and only the clock makes it faster.
double chunk(double start) {
  double x = start;
  for (int i = 0; i < kRounds; ++i) x = x * 0.999999 + std::sqrt(x + 1.0) * 1e-6;
  return x;
}

double fastest_chunk_ms() {
  double best = 1e9, x = 1;
  for (int i = 0; i < kChunks; ++i) {
    const auto began = Clock::now();
    x = chunk(x);
    best = std::min(best, milliseconds_since(began));
  }
  return x > 0 ? best : 1e9;
}

double fastest_copy_gb_s() {
  const std::vector<char> from(kCopyBytes, 'f');
  std::vector<char> to(kCopyBytes, 't');
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    const auto began = Clock::now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    const volatile char last = to[kCopyBytes - 1];
    (void)last;
    best = std::max(best, static_cast<double>(kCopyBytes) / milliseconds_since(began) / 1e6);
  }
  return best;
}

// What training computes with: exponentials, roots, sums of single precision. The mathematical
// library picks its code by processor, and rounds as that does.
std::string bits() {
  std::vector<float> results;
  std::uint64_t state = 88172645463325252;
  float sum = 0;
  for (std::size_t i = 0; i < kInputs; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const float x = static_cast<float>(state >> 40) * 0x1p-20f - 8.0f;
    const double y = static_cast<double>(state >> 11) * 0x1p-50;
    sum += std::exp(-x * x) + std::tanh(x);
    results.push_back(sum + std::sin(x) + std::log1p(std::abs(x)));
    results.push_back(static_cast<float>(std::exp(-y) * std::sin(y) + std::pow(y + 0.5, 1.7)));
    const double wide =
        std::exp(-y) + std::sin(y * 3) + std::log(y + 0.25) + std::pow(y + 0.5, 1.7);
    std::uint64_t word;
    std::memcpy(&word, &wide, sizeof word);
    results.push_back(static_cast<float>(word & 0xFFFF));
  }
  return hash_text({reinterpret_cast<const char*>(results.data()), results.size() * sizeof(float)});
}

}  // namespace

void probe_speed(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kBits, bits());
  facts.set(fact::kChunkMs, fastest_chunk_ms());
  facts.set(fact::kMemoryGbS, fastest_copy_gb_s());
}

}  // namespace ddprun::doctor
