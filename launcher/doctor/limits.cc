// Limits of ulimit, and what else keeps processes from being started.

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr std::int64_t kNoLimit = -1;

constexpr Whole kFilesSoft{"files_soft"};
constexpr Whole kFilesHard{"files_hard"};
constexpr Whole kLocked{"locked_bytes"};
constexpr Whole kCore{"core_bytes"};
constexpr Text kCorePattern{"core_pattern"};
constexpr Whole kTasksLeft{"tasks_left"};  // Processes and threads that may still be started.
constexpr Text kTasksBy{"tasks_by"};       // The limit that allows no more of them.
constexpr Whole kInfiniBand{"infiniband_devices"};

}  // namespace fact

namespace {

using namespace std::chrono_literals;

std::int64_t limit(rlim_t value) {
  return value == RLIM_INFINITY ? fact::kNoLimit : static_cast<std::int64_t>(value);
}

// Processes and threads of this user.
std::int64_t tasks_of_user() {
  std::int64_t tasks = 0;
  for (const int pid : agent::numbered_entries("/proc")) {
    const std::string folder = "/proc/" + std::to_string(pid);
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || status.st_uid != ::getuid()) continue;
    struct stat threads {};
    // A folder has a link from itself, one from above, and one from each folder in it.
    const bool known = ::stat((folder + "/task").c_str(), &threads) == 0 && threads.st_nlink > 2;
    tasks += known ? static_cast<std::int64_t>(threads.st_nlink) - 2 : 1;
  }
  return tasks;
}

struct Tasks {
  std::int64_t left = fact::kNoLimit;
  std::string by = {};

  void no_more_than(std::int64_t number, std::string limit) {
    if (left >= 0 && number >= left) return;
    left = std::max<std::int64_t>(number, 0);
    by = std::move(limit);
  }
};

// The kernel does not apply ulimit -u to root.
void tasks_by_user(Tasks& tasks) {
  rlimit processes{};
  if (::geteuid() == 0 || ::getrlimit(RLIMIT_NPROC, &processes) != 0) return;
  if (processes.rlim_cur == RLIM_INFINITY) return;
  tasks.no_more_than(limit(processes.rlim_cur) - tasks_of_user(), "ulimit -u");
}

void gather_limits(const ProbeRequest&, Facts& facts) {
  rlimit value{};
  if (::getrlimit(RLIMIT_NOFILE, &value) == 0) {
    facts.set(fact::kFilesSoft, limit(value.rlim_cur));
    facts.set(fact::kFilesHard, limit(value.rlim_max));
  }
  if (::getrlimit(RLIMIT_MEMLOCK, &value) == 0) facts.set(fact::kLocked, limit(value.rlim_cur));
  if (::getrlimit(RLIMIT_CORE, &value) == 0) facts.set(fact::kCore, limit(value.rlim_cur));
  std::string pattern = agent::read_proc_file("/proc/sys/kernel/core_pattern");
  while (pattern.ends_with('\n')) pattern.pop_back();
  facts.set(fact::kCorePattern, std::move(pattern));
  const std::size_t adapters = names_in("/sys/class/infiniband").names.size();
  facts.set(fact::kInfiniBand, static_cast<std::int64_t>(adapters));

  Tasks tasks;
  tasks_by_user(tasks);
  if (const auto left = agent::room_in_cgroups("pids", "pids.max", "pids.current")) {
    tasks.no_more_than(*left, "pids.max of a cgroup");
  }
  facts.set(fact::kTasksLeft, tasks.left);
  if (!tasks.by.empty()) facts.set(fact::kTasksBy, std::move(tasks.by));
}

constexpr std::int64_t kFilesPerWorker = 5;  // Of ddprun's own, see common/system/limits.cc.
constexpr std::int64_t kFilesOfDdprun = 64;  // Beside them.
constexpr std::int64_t kFilesUsual = 1'024;  // With fewer, common programs run out of files.
constexpr std::int64_t kTasksPerWorker = 4;  // The least that starts.
constexpr std::int64_t kTasksUsual = 64;     // What PyTorch starts: pools, data loaders.
constexpr std::int64_t kTasksOfDdprun = 16;
constexpr std::int64_t kLockedEnough = std::int64_t{1} << 30;

std::string for_workers(int workers) { return " for " + number_of(workers, "worker"); }

Findings judge_open_files(const Facts& facts, const Need& need) {
  const auto soft = facts.get(fact::kFilesSoft), hard = facts.get(fact::kFilesHard);
  if (!soft || !hard) return not_measured();
  const std::int64_t wanted = kFilesPerWorker * need.workers + kFilesOfDdprun;
  Finding finding{.value = *hard < 0 ? "unlimited" : grouped(*hard)};
  if (*hard >= 0 && *hard < wanted) {
    finding.status = Status::kFail;
    finding.note = "ddprun needs " + grouped(wanted) + for_workers(need.workers);
    finding.cure = "ulimit -n " + std::to_string(std::max(wanted, kFilesUsual));
  } else if (*soft >= 0 && *soft < kFilesUsual) {
    finding.status = Status::kWarn;
    finding.value = grouped(*soft);
    finding.note = "few for data loaders";
    finding.cure = "ulimit -n " + (*hard < 0 ? "65536" : std::to_string(*hard));
  }
  return {finding};
}

Findings judge_processes(const Facts& facts, const Need& need) {
  const auto left = facts.get(fact::kTasksLeft);
  if (!left) return not_measured();
  const std::string by = facts.get_or(fact::kTasksBy, std::string("a limit"));
  if (*left < 0) return {{.value = "unlimited"}};
  Finding finding{.value = grouped(*left) + " left"};
  const bool none = *left < kTasksPerWorker * need.workers + kTasksOfDdprun;
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
  if (!locked) return not_measured();
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
  if (!core) return not_measured();
  const std::string pattern = facts.text(fact::kCorePattern);
  if (pattern.starts_with('|')) return {{.value = "to a program", .note = pattern.substr(1)}};
  return {{.value = *core == 0 ? "off" : limit_text(*core)}};
}

}  // namespace

Subject limits_subject() {
  return {.probe = Probe{"limits", 5s, /*fast=*/true, /*alone=*/false, gather_limits},
          .checks = {{"open files", judge_open_files},
                     {"processes", judge_processes},
                     {"locked memory", judge_locked_memory},
                     {"core files", judge_core}}};
}

}  // namespace ddprun::doctor
