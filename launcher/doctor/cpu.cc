// Processors and memory: how much of them cgroups leave, what the kernel reports of both, and how
// fast they are.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <vector>

#include "agent/placement/worker_count.h"
#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr Whole kProcessors{"processors"};  // That this process may use.
constexpr Real kQuota{"cpu_quota"};         // In processors; absent: none.
constexpr Whole kMemoryLeft{"memory_left_bytes"};
constexpr Text kMemoryBy{"memory_by"};  // "machine" or "cgroup".
constexpr Text kCgroup{"cgroup"};       // Version 2, where workers' cgroups can be made; or empty.
constexpr Text kGovernor{"governor"};
constexpr Text kGovernorDriver{"governor_driver"};
constexpr Whole kMemoryErrors{"memory_errors"};  // Uncorrectable, since the boot.

constexpr Real kChunkMs{"chunk_ms"};       // Time of a piece of computing, the fastest of many.
constexpr Real kMemoryGbS{"memory_gb_s"};  // Speed of copying, the fastest of a few.
constexpr Text kBits{"bits"};              // Hash of computed results.

}  // namespace fact

namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kKib = 1024;
constexpr std::int64_t kNoMemoryLimit = std::int64_t{1} << 60;  // cgroup v1 writes more than this.

std::optional<std::int64_t> available_memory() {
  std::istringstream lines(agent::read_proc_file("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) return kib * kKib;
  }
  return std::nullopt;
}

// The kernel can give this back at once: pages of files that are no longer used.
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
  const std::string controllers = "/sys/devices/system/edac/mc";
  std::int64_t errors = 0;
  for (const std::string& name : names_in(controllers).names) {
    errors += agent::number_in(controllers + "/" + name + "/ue_count").value_or(0);
  }
  facts.set(fact::kMemoryErrors, errors);
}

void gather_cpu(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kProcessors, std::int64_t{agent::usable_processors()});
  if (const auto quota = agent::processor_quota()) facts.set(fact::kQuota, *quota);
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

constexpr std::int64_t kMemoryLeast = 64 * kMega;    // A worker cannot start with less.
constexpr std::int64_t kMemoryEnough = 512 * kMega;  // PyTorch alone takes this much.

std::string fewer_workers(double fit) {
  return "--nproc-per-node " + std::to_string(std::max(1, static_cast<int>(fit)));
}

Findings judge_memory(const Facts& facts, const Need& need) {
  const auto left = facts.get(fact::kMemoryLeft);
  if (!left) return not_measured();
  const bool limited = facts.text(fact::kMemoryBy) == "cgroup";
  Findings findings{{.value = bytes_text(*left) + " left"}};
  Finding& finding = findings.front();
  if (limited) finding.note = "a cgroup's limit";
  const std::int64_t least = kMemoryLeast * need.workers + need.memory_folder;
  const std::int64_t enough = kMemoryEnough * need.workers + need.memory_folder;
  if (*left < enough) {
    finding.status = *left < least ? Status::kFail : Status::kWarn;
    finding.note = std::to_string(need.workers) + " workers with PyTorch" +
                   (need.memory_folder > 0 ? " and the memory folder" : "") + " need about " +
                   bytes_text(enough) + (limited ? "; a cgroup's limit (docker run --memory)" : "");
    const bool fits = need.memory_folder == 0 || *left > need.memory_folder + kMemoryEnough;
    finding.cure =
        fits ? fewer_workers(static_cast<double>((*left - need.memory_folder) / kMemoryEnough))
             : "a smaller --memory-folder";
  }
  if (const auto errors = facts.get_or(fact::kMemoryErrors, std::int64_t{0}); errors > 0) {
    findings.push_back({.name = "memory errors",
                        .status = Status::kFail,
                        .value = grouped(errors) + " uncorrected",
                        .note = "since the boot: a module is going bad",
                        .cure = "edac-util -v"});
  }
  return findings;
}

Findings judge_processors(const Facts& facts, const Need& need) {
  const auto processors = facts.get(fact::kProcessors);
  if (!processors) return not_measured();
  const auto quota = facts.get(fact::kQuota);
  const double usable =
      std::min(static_cast<double>(*processors), quota.value_or(static_cast<double>(*processors)));
  Finding finding{.value = number_text(usable)};
  const bool limited = usable < static_cast<double>(*processors);
  if (limited) finding.note = "of " + grouped(*processors) + ", by a cgroup's quota";
  if (usable < need.workers) {
    finding.status = Status::kWarn;
    finding.note = "for " + number_of(need.workers, "worker") + ": they wait for each other";
    if (limited) finding.note += "; a cgroup's quota (docker run --cpus)";
    finding.cure = limited && usable < 1 ? "raise cpu.max" : fewer_workers(usable);
  }
  return {finding};
}

Findings judge_governor(const Facts& facts, const Need&) {
  const std::string governor = facts.text(fact::kGovernor);
  if (governor.empty()) return {{.status = Status::kSkipped, .value = "none here"}};
  const std::string driver = facts.text(fact::kGovernorDriver);
  // These drivers raise the clock under load, whatever the governor's name is.
  const bool dynamic = driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate") ||
                       driver.starts_with("amd_pstate");
  if (governor != "powersave" || dynamic) return {{.value = governor}};
  return {{.status = Status::kWarn,
           .value = governor,
           .note = "the processors stay at their lowest clock",
           .cure = "cpupower frequency-set -g performance"}};
}

Findings judge_cgroup(const Facts& facts, const Need&) {
  const auto folder = facts.get(fact::kCgroup);
  if (!folder) return not_measured();
  if (folder->empty()) {
    return {{.status = Status::kSkipped,
             .value = "none of our own",
             .note = "workers are killed one by one"}};
  }
  return {{.value = "v2, delegated", .note = "workers are killed in one write"}};
}

// How fast this node computes and copies, and the bits of its results. The best of many short
// pieces is what the hardware can do; other load shows in the other pieces.

using Clock = std::chrono::steady_clock;

constexpr int kChunks = 60;
constexpr int kRounds = 100'000;  // Per chunk: about a millisecond.
constexpr int kCopies = 24;
constexpr std::size_t kCopyBytes = 8u << 20;  // More than caches hold.
constexpr std::size_t kInputs = 50'000;

double milliseconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

// A chain of dependent operations: no compiler can split it, and only the clock rate makes it
// faster.
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

// Computes what training computes: exponentials, roots, sums of single precision. The mathematical
// library picks its code by processor, so that results may be rounded differently.
std::string hash_of_results() {
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

void gather_speed(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kBits, hash_of_results());
  facts.set(fact::kChunkMs, fastest_chunk_ms());
  facts.set(fact::kMemoryGbS, fastest_copy_gb_s());
}

Findings judge_speed(const Facts& facts, const Need&) {
  const auto chunk = facts.get(fact::kChunkMs), memory = facts.get(fact::kMemoryGbS);
  if (!chunk || !memory) return {{.status = Status::kSkipped, .value = "not measured"}};
  return {{.value = number_text(*memory) + " GB/s",
           .note = "of memory; a piece of computing takes " + ms_text(*chunk)}};
}

Rows compare_bits(const Nodes& nodes, const Need&) {
  std::vector<std::string> hashes;
  for (const NodeFacts& node : nodes) hashes.push_back(node.facts.text(fact::kBits).substr(0, 6));
  if (!any_known(hashes)) return {};
  Row row = row_of("same bits", cells_of(hashes, Status::kWarn));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "equal input gives different bits there: a different processor or C library";
    row.finding.cure = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA on all nodes";
  }
  return {row};
}

// A node that is slower than the others by such a factor is not so by chance: the best of many
// short pieces is compared, which other load hardly affects.
constexpr double kSlowCompute = 1.8;
constexpr double kSlowMemory = 4;  // Neighbours share the memory.

struct Measure {
  std::string_view name;
  Real fact;
  double slow;
  bool more_is_better;
  std::string (*text)(double);
};

std::string gb_s_text(double rate) { return number_text(rate) + " GB/s"; }

// The median; the better one of two.
double typical(std::vector<double> values, bool more_is_better) {
  if (more_is_better)
    std::sort(values.begin(), values.end(), std::greater<>());
  else
    std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

Rows compare_measure(const Nodes& nodes, const Measure& measure) {
  std::vector<double> known;
  for (const NodeFacts& node : nodes) {
    if (const auto value = node.facts.get(measure.fact)) known.push_back(*value);
  }
  if (known.size() < 2) return {};
  const double peers = typical(known, measure.more_is_better);
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const auto value = node.facts.get(measure.fact);
    if (!value) {
      cells.push_back({});
      continue;
    }
    const bool slow =
        measure.more_is_better ? *value * measure.slow < peers : *value > peers * measure.slow;
    cells.push_back({measure.text(*value), slow ? Status::kWarn : Status::kOk});
  }
  Row row = row_of(std::string(measure.name), std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note =
        "others: " + measure.text(peers) + "; a quota, a hot processor, a neighbour?";
    row.finding.cure = "top";
  }
  return {row};
}

Rows compare_computing(const Nodes& nodes, const Need&) {
  return compare_measure(nodes, {.name = "computing",
                                 .fact = fact::kChunkMs,
                                 .slow = kSlowCompute,
                                 .more_is_better = false,
                                 .text = ms_text});
}

Rows compare_memory_speed(const Nodes& nodes, const Need&) {
  return compare_measure(nodes, {.name = "memory speed",
                                 .fact = fact::kMemoryGbS,
                                 .slow = kSlowMemory,
                                 .more_is_better = true,
                                 .text = gb_s_text});
}

}  // namespace

Subject cpu_subject() {
  return {.probe = Probe{"cpu", 5s, /*fast=*/true, /*alone=*/false, gather_cpu},
          .checks = {{"memory", judge_memory},
                     {"processors", judge_processors},
                     {"governor", judge_governor},
                     {"cgroup", judge_cgroup}}};
}

Subject speed_subject() {
  return {.probe = Probe{"speed", 15s, /*fast=*/false, /*alone=*/true, gather_speed},
          .checks = {{"speed", judge_speed, /*if_several=*/false}},
          .comparisons = {{Section::kBits, compare_bits},
                          {Section::kSpeed, compare_computing},
                          {Section::kSpeed, compare_memory_speed}}};
}

}  // namespace ddprun::doctor
