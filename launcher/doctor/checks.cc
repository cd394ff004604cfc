#include "launcher/doctor/checks.h"

#include <algorithm>
#include <cmath>

#include "common/assert.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/finding.h"

namespace ddprun::doctor {
namespace {

constexpr Check kChecks[] = {
    {"open files", Group::kMachine, "limits", judge_open_files},
    {"processes", Group::kMachine, "limits", judge_processes},
    {"locked memory", Group::kMachine, "limits", judge_locked_memory},
    {"core files", Group::kMachine, "limits", judge_core},
    {"/dev/shm", Group::kMachine, "storage", judge_shared_memory},
    {"TMPDIR", Group::kMachine, "storage", judge_temporary_folder},
    {"memory", Group::kMachine, "cpu", judge_memory},
    {"processors", Group::kMachine, "cpu", judge_processors},
    {"governor", Group::kMachine, "cpu", judge_governor},
    {"cgroup", Group::kMachine, "cpu", judge_cgroup},
    {"clock", Group::kMachine, "node", judge_clock},
    {"leftovers", Group::kMachine, "leftovers", judge_leftovers},
    {"program", Group::kMachine, "program", judge_program},
    {"speed", Group::kMachine, "speed", judge_speed},
    {"GPUs", Group::kGpu, "gpu", judge_gpus},
    {"own name", Group::kNetwork, "names", judge_name},
    {"interfaces", Group::kNetwork, "network", judge_interfaces},
    {"port", Group::kNetwork, "network", judge_port},
    {"loopback", Group::kNetwork, "network", judge_loopback},
};

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

std::vector<Finding> judge(const Check& check, const Facts& facts, const Need& need) {
  std::vector<Finding> findings;
  if (const std::string why = facts.why(check.probe); !why.empty()) {
    findings = {{.status = Status::kUnknown, .value = "not measured", .note = why}};
  } else {
    findings = check.judge(facts, need);
  }
  DDPRUN_ASSERT(!findings.empty());
  for (Finding& finding : findings) {
    if (finding.name.empty()) finding.name = check.name;
  }
  return findings;
}

// Memory and processors, what cgroups leave of them, and how fast they are.

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

// What ulimit and its relatives allow.

namespace {

constexpr std::int64_t kFilesAWorker = 5;    // Of ddprun's own, see common/system/limits.cc.
constexpr std::int64_t kFilesOfDdprun = 64;  // Beside them.
constexpr std::int64_t kFilesUsual = 1'024;  // Below it programs run short that never do elsewhere.
constexpr std::int64_t kTasksAWorker = 4;    // The least that starts.
constexpr std::int64_t kTasksUsual = 64;     // What PyTorch starts: pools, data loaders.
constexpr std::int64_t kTasksOfDdprun = 16;
constexpr std::int64_t kLockedEnough = std::int64_t{1} << 30;

const Finding kNotKnown{.status = Status::kUnknown, .value = "not measured"};

std::string for_workers(int workers) {
  return " for " + std::to_string(workers) + (workers == 1 ? " worker" : " workers");
}

}  // namespace

Findings judge_open_files(const Facts& facts, const Need& need) {
  const auto soft = facts.get(fact::kFilesSoft), hard = facts.get(fact::kFilesHard);
  if (!soft || !hard) return {kNotKnown};
  const std::int64_t wanted = kFilesAWorker * need.workers + kFilesOfDdprun;
  Finding finding{.value = *hard < 0 ? "unlimited" : count_text(*hard)};
  if (*hard >= 0 && *hard < wanted) {
    finding.status = Status::kFail;
    finding.note = "ddprun needs " + count_text(wanted) + for_workers(need.workers);
    finding.cure = "ulimit -n " + std::to_string(std::max(wanted, kFilesUsual));
  } else if (*soft >= 0 && *soft < kFilesUsual) {
    finding.status = Status::kWarn;
    finding.value = count_text(*soft);
    finding.note = "few for data loaders";
    finding.cure = "ulimit -n " + (*hard < 0 ? "65536" : std::to_string(*hard));
  }
  return {finding};
}

Findings judge_processes(const Facts& facts, const Need& need) {
  const auto left = facts.get(fact::kTasksLeft);
  if (!left) return {kNotKnown};
  const std::string by = facts.get_or(fact::kTasksBy, std::string("a limit"));
  if (*left < 0) return {{.value = "unlimited"}};
  Finding finding{.value = count_text(*left) + " left"};
  const bool none = *left < kTasksAWorker * need.workers + kTasksOfDdprun;
  if (!none && *left >= kTasksUsual * need.workers) return {finding};
  finding.status = none ? Status::kFail : Status::kWarn;
  finding.note = "few" + for_workers(need.workers) + " with their threads; the limit is " + by;
  const std::int64_t wanted = 4 * kTasksUsual * need.workers;
  finding.cure = by == "ulimit -u" ? "ulimit -u " + std::to_string(wanted)
                                   : "raise " + by + " by " + std::to_string(wanted);
  return {finding};
}

Findings judge_locked_memory(const Facts& facts, const Need&) {
  const auto locked = facts.get(fact::kLocked);
  if (!locked) return {kNotKnown};
  Finding finding{.value = limit_text(*locked)};
  if (facts.get_or(fact::kInfiniBand, std::int64_t{0}) == 0) return {finding};
  if (*locked >= 0 && *locked < kLockedEnough) {
    finding.status = Status::kFail;
    finding.note = "NCCL over InfiniBand needs more";
    finding.cure = "ulimit -l unlimited";
  }
  return {finding};
}

Findings judge_core(const Facts& facts, const Need&) {
  const auto core = facts.get(fact::kCore);
  if (!core) return {kNotKnown};
  const std::string pattern = facts.get_or(fact::kCorePattern, std::string());
  if (pattern.starts_with('|')) return {{.value = "to a program", .note = pattern.substr(1)}};
  return {{.value = *core == 0 ? "off" : limit_text(*core)}};
}

// The clock, what earlier runs have left behind, and the program.
Findings judge_clock(const Facts& facts, const Need& need) {
  if (const auto error = facts.get(fact::kClockErrorMs)) {
    return {{.value = "synchronised", .note = "within " + ms_text(*error)}};
  }
  return {{.status = Status::kSkipped,
           .value = "not synchronised",
           .note = need.several ? "" : "matters between nodes: ddprun doctor --hosts measures it"}};
}

Findings judge_leftovers(const Facts& facts, const Need&) {
  Findings findings;
  for (const Facts& left : facts.list(fact::kLeftovers)) {
    findings.push_back({.status = Status::kWarn,
                        .value = left.get_or(fact::kLeft, std::string("something")),
                        .note = "of a run that is over",
                        .cure = left.get_or(fact::kLeftCure, std::string())});
  }
  if (findings.empty()) findings.push_back({.value = "none"});
  return findings;
}

Findings judge_program(const Facts& facts, const Need& need) {
  if (need.program.empty()) {
    return {{.status = Status::kSkipped,
             .value = "none given",
             .note = "ddprun doctor PROGRAM compares it and its libraries between nodes"}};
  }
  const std::string error = facts.get_or(fact::kProgramError, std::string());
  if (!error.empty()) {
    return {{.status = Status::kFail, .value = need.program, .note = error}};
  }
  for (const Facts& file : facts.list(fact::kFiles)) {
    if (file.get_or(fact::kFileName, std::string()) == "program") {
      return {
          {.value = need.program + " " + file.get_or(fact::kFileHash, std::string()).substr(0, 6)}};
    }
  }
  return {{.status = Status::kUnknown, .value = "not measured"}};
}

// Shared memory and the temporary folder.

namespace {

constexpr std::int64_t kShmAWorker = 32 * kMega;      // NCCL's buffers, batches of data loaders.
constexpr std::int64_t kShmLeastAWorker = 8 * kMega;  // NCCL's alone.
constexpr std::int64_t kShmOfContainers = 64 * 1024 * 1024;  // Docker's default, never enough.
constexpr std::int64_t kTmpLeast = 10 * kMega;
constexpr std::int64_t kTmpEnough = 1'000 * kMega;
constexpr std::int64_t kInodesEnough = 1'000;

std::string roomier(const std::string& tmp) {
  return tmp == "/var/tmp" ? "TMPDIR=DIR" : "TMPDIR=/var/tmp";
}

}  // namespace

Findings judge_shared_memory(const Facts& facts, const Need& need) {
  const std::string error = facts.get_or(fact::kShmError, std::string());
  if (!error.empty()) {
    return {{.status = Status::kFail,
             .value = error,
             .note = "NCCL and data loaders need it",
             .cure = "mount -t tmpfs -o size=8g,mode=1777 tmpfs /dev/shm"}};
  }
  const auto free = facts.get(fact::kShmFree), size = facts.get(fact::kShmSize);
  if (!free || !size) return {{.status = Status::kUnknown, .value = "not measured"}};
  Finding finding{.value = bytes_text(*free) + " free"};
  const std::int64_t wanted = kShmAWorker * need.workers;
  if (*free >= wanted && *size > kShmOfContainers) return {finding};
  finding.status = *free < kShmLeastAWorker * need.workers ? Status::kFail : Status::kWarn;
  finding.note = "NCCL and data loaders need about " +
                 bytes_text(std::max(wanted, 2 * kShmOfContainers)) + ", containers get --shm-size";
  finding.cure = "mount -o remount,size=8g /dev/shm";
  return {finding};
}

Findings judge_temporary_folder(const Facts& facts, const Need&) {
  const auto folder = facts.get(fact::kTmp);
  if (!folder) return {{.status = Status::kUnknown, .value = "not measured"}};
  const std::string error = facts.get_or(fact::kTmpError, std::string());
  Finding finding{.value = *folder};
  if (!error.empty()) {
    finding.status = Status::kFail;
    finding.note = error;
    finding.cure = "export " + roomier(*folder);
    return {finding};
  }
  const std::int64_t free = facts.get_or(fact::kTmpFree, kTmpEnough);
  finding.value += ", " + bytes_text(free) + " free";
  if (free < kTmpEnough) {
    finding.status = free < kTmpLeast ? Status::kFail : Status::kWarn;
    finding.note = "logs of a long run need more";
    finding.cure = "export " + roomier(*folder);
  } else if (facts.get_or(fact::kTmpInodes, kInodesEnough) < kInodesEnough) {
    finding.status = Status::kWarn;
    finding.note = "no more files can be made there (df -i)";
    finding.cure = "export " + roomier(*folder);
  } else if (facts.get_or(fact::kTmpNoExec, std::int64_t{0}) != 0) {
    finding.status = Status::kWarn;
    finding.note = "mounted noexec: torch.compile and Triton load what they build there";
    finding.cure = "export " + roomier(*folder);
  }
  return {finding};
}

}  // namespace ddprun::doctor
