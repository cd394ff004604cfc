// What ulimit and its relatives allow.

#include <algorithm>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
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

}  // namespace ddprun::doctor
