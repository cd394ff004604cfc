// Shared memory and the temporary folder.

#include <algorithm>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
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
