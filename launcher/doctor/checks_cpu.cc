// Memory and processors, what cgroups leave of them, and how fast they are.

#include <algorithm>
#include <cmath>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
namespace {

constexpr std::int64_t kMemoryLeast = 64 * kMega;    // A worker cannot start with less.
constexpr std::int64_t kMemoryEnough = 512 * kMega;  // PyTorch alone takes as much.

std::string fewer_workers(double fit) {
  return "--nproc-per-node " + std::to_string(std::max(1, static_cast<int>(fit)));
}

}  // namespace

Findings judge_memory(const Facts& facts, const Need& need) {
  const auto left = facts.get(fact::kMemoryLeft);
  if (!left) return {{.status = Status::kUnknown, .value = "not measured"}};
  const bool limited = facts.get_or(fact::kMemoryBy, std::string()) == "cgroup";
  Findings findings{{.value = bytes_text(*left) + " left"}};
  Finding& finding = findings.front();
  if (limited) finding.note = "a cgroup's limit";
  if (*left < kMemoryEnough * need.workers) {
    finding.status = *left < kMemoryLeast * need.workers ? Status::kFail : Status::kWarn;
    finding.note = std::to_string(need.workers) + " workers with PyTorch need about " +
                   bytes_text(kMemoryEnough * need.workers) +
                   (limited ? "; a cgroup's limit (docker run --memory)" : "");
    finding.cure = fewer_workers(static_cast<double>(*left / kMemoryEnough));
  }
  if (const auto errors = facts.get_or(fact::kMemoryErrors, std::int64_t{0}); errors > 0) {
    findings.push_back({.name = "memory errors",
                        .status = Status::kFail,
                        .value = count_text(errors) + " uncorrected",
                        .note = "since the boot: a module is going bad",
                        .cure = "edac-util -v"});
  }
  return findings;
}

Findings judge_processors(const Facts& facts, const Need& need) {
  const auto processors = facts.get(fact::kProcessors);
  if (!processors) return {{.status = Status::kUnknown, .value = "not measured"}};
  const auto quota = facts.get(fact::kQuota);
  const double usable =
      std::min(static_cast<double>(*processors), quota.value_or(static_cast<double>(*processors)));
  Finding finding{.value = number_text(usable)};
  const bool limited = usable < static_cast<double>(*processors);
  if (limited) finding.note = "of " + count_text(*processors) + ", by a cgroup's quota";
  if (usable < need.workers) {
    finding.status = Status::kWarn;
    finding.note = "for " + std::to_string(need.workers) +
                   (need.workers == 1 ? " worker" : " workers") + ": they wait for each other";
    if (limited) finding.note += "; a cgroup's quota (docker run --cpus)";
    finding.cure = limited && usable < 1 ? "raise cpu.max" : fewer_workers(usable);
  }
  return {finding};
}

Findings judge_governor(const Facts& facts, const Need&) {
  const std::string governor = facts.get_or(fact::kGovernor, std::string());
  if (governor.empty()) return {{.status = Status::kSkipped, .value = "none here"}};
  const std::string driver = facts.get_or(fact::kGovernorDriver, std::string());
  // These drivers raise the clock under load whatever they are called.
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
  if (!folder) return {{.status = Status::kUnknown, .value = "not measured"}};
  if (folder->empty()) {
    return {{.status = Status::kSkipped,
             .value = "none of our own",
             .note = "workers are killed one by one"}};
  }
  return {{.value = "v2, delegated", .note = "workers are killed in one write"}};
}

Findings judge_speed(const Facts& facts, const Need&) {
  const auto chunk = facts.get(fact::kChunkMs), memory = facts.get(fact::kMemoryGbS);
  if (!chunk || !memory) return {{.status = Status::kSkipped, .value = "not measured"}};
  return {{.value = number_text(*memory) + " GB/s",
           .note = "of memory; a piece of computing takes " + ms_text(*chunk)}};
}

}  // namespace ddprun::doctor
