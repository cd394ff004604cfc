// Shared memory, the place of the memory folder and the temporary folder: how much room they have,
// and whether they can be written.

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/system/descriptors.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr Whole kShmFree{"shm_free_bytes"};
constexpr Whole kShmSize{"shm_bytes"};
constexpr Text kShmError{"shm_error"};  // Why nothing can be written there.
constexpr Text kMemoryAt{"memory_at"};  // Where the memory folder would be.
constexpr Whole kMemoryFree{"memory_at_free_bytes"};
constexpr Whole kMemoryOnDisk{"memory_at_on_disk"};  // 0 or 1.
constexpr Text kMemoryError{"memory_at_error"};
constexpr Text kTmp{"tmp"};
constexpr Whole kTmpFree{"tmp_free_bytes"};
constexpr Whole kTmpInodes{"tmp_free_inodes"};
constexpr Whole kTmpNoExec{"tmp_noexec"};  // 0 or 1.
constexpr Text kTmpError{"tmp_error"};

}  // namespace fact

namespace {

using namespace std::chrono_literals;

// Why a file cannot be made and written in `folder`; empty: it can. Leaves nothing there.
std::string why_not_writable(const std::string& folder) {
  const std::string path = folder + "/ddprun-doctor-" + random_hex(8);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return std::strerror(errno);
  ::unlink(path.c_str());
  const char block[4096] = {};
  return ::write(file.get(), block, sizeof block) == sizeof block ? "" : std::strerror(errno);
}

std::int64_t bytes(unsigned long blocks, const struct statvfs& room) {
  return static_cast<std::int64_t>(blocks) * static_cast<std::int64_t>(room.f_frsize);
}

void gather_memory_folder(const std::string& at, Facts& facts) {
  facts.set(fact::kMemoryAt, at);
  struct statvfs room {};
  if (::statvfs(at.c_str(), &room) == 0) facts.set(fact::kMemoryFree, bytes(room.f_bavail, room));
  struct statfs kind {};
  const bool is_known = ::statfs(at.c_str(), &kind) == 0;
  const bool in_memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC;
  if (is_known) facts.set(fact::kMemoryOnDisk, std::int64_t{!in_memory});
  if (const std::string why = why_not_writable(at); !why.empty()) {
    facts.set(fact::kMemoryError, why);
  }
}

void gather_storage(const ProbeRequest& request, Facts& facts) {
  gather_memory_folder(request.memory_at.empty() ? "/dev/shm" : request.memory_at, facts);
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) == 0) {
    facts.set(fact::kShmSize, bytes(room.f_blocks, room));
    facts.set(fact::kShmFree, bytes(room.f_bavail, room));
  }
  if (const std::string why = why_not_writable("/dev/shm"); !why.empty()) {
    facts.set(fact::kShmError, why);
  }
  const std::string given = environment_variable("TMPDIR");
  const std::string folder = given.empty() ? "/tmp" : given;
  facts.set(fact::kTmp, folder);
  if (::statvfs(folder.c_str(), &room) == 0) {
    facts.set(fact::kTmpFree, bytes(room.f_bavail, room));
    // File systems that make inodes on demand report none.
    if (room.f_files > 0) facts.set(fact::kTmpInodes, static_cast<std::int64_t>(room.f_favail));
    facts.set(fact::kTmpNoExec, std::int64_t{(room.f_flag & ST_NOEXEC) != 0});
  }
  if (const std::string why = why_not_writable(folder); !why.empty()) {
    facts.set(fact::kTmpError, why);
  }
}

constexpr std::int64_t kShmPerWorker = 32 * kMega;      // NCCL's buffers, batches of data loaders.
constexpr std::int64_t kShmLeastPerWorker = 8 * kMega;  // NCCL's alone.
constexpr std::int64_t kShmOfContainers = 64 * 1024 * 1024;  // Docker's default, never enough.
constexpr std::int64_t kTmpLeast = 10 * kMega;
constexpr std::int64_t kTmpEnough = 1'000 * kMega;
constexpr std::int64_t kInodesEnough = 1'000;

std::string roomier(const std::string& tmp) {
  return tmp == "/var/tmp" ? "TMPDIR=DIR" : "TMPDIR=/var/tmp";
}

Findings judge_shared_memory(const Facts& facts, const Need& need) {
  const std::string error = facts.text(fact::kShmError);
  if (!error.empty()) {
    return {{.status = Status::kFail,
             .value = error,
             .note = "NCCL and data loaders need it",
             .cure = "mount -t tmpfs -o size=8g,mode=1777 tmpfs /dev/shm"}};
  }
  const auto free = facts.get(fact::kShmFree), size = facts.get(fact::kShmSize);
  if (!free || !size) return not_measured();
  Finding finding{.value = bytes_text(*free) + " free"};
  const std::int64_t wanted = kShmPerWorker * need.workers;
  if (*free >= wanted && *size > kShmOfContainers) return {finding};
  finding.status = *free < kShmLeastPerWorker * need.workers ? Status::kFail : Status::kWarn;
  finding.note = "NCCL and data loaders need about " +
                 bytes_text(std::max(wanted, 2 * kShmOfContainers)) + ", containers get --shm-size";
  finding.cure = "mount -o remount,size=8g /dev/shm";
  return {finding};
}

constexpr const char* kOtherPlace =
    "docker run --shm-size=SIZE; on Kubernetes an emptyDir with medium: Memory at /dev/shm; or "
    "another tmpfs: --memory-folder SIZE,at=FOLDER";

Findings judge_memory_folder(const Facts& facts, const Need& need) {
  if (need.memory_folder == 0) {
    return {{.status = Status::kSkipped,
             .value = "none asked for",
             .note = "ddprun doctor --memory-folder SIZE checks its place"}};
  }
  const std::string at = facts.text(fact::kMemoryAt);
  const auto free = facts.get(fact::kMemoryFree);
  if (at.empty()) return not_measured();
  const std::string error = facts.text(fact::kMemoryError);
  Finding finding{.value = at};
  if (!error.empty() || !free) {
    finding.status = Status::kFail;
    finding.note = error.empty() ? "it is not there" : error;
    finding.cure = kOtherPlace;
    return {finding};
  }
  finding.value += ", " + bytes_text(*free) + " free";
  if (*free < need.memory_folder) {
    finding.status = Status::kFail;
    finding.note = "a folder of " + bytes_text(need.memory_folder) + " does not fit there";
    finding.cure = kOtherPlace;
  } else if (facts.get_or(fact::kMemoryOnDisk, std::int64_t{0}) != 0) {
    finding.status = Status::kWarn;
    finding.note = "that is not in memory: its files are on a disk";
    finding.cure = "--memory-folder SIZE,at=FOLDER of a tmpfs";
  }
  return {finding};
}

Findings judge_temporary_folder(const Facts& facts, const Need&) {
  const auto folder = facts.get(fact::kTmp);
  if (!folder) return not_measured();
  const std::string error = facts.text(fact::kTmpError);
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

}  // namespace

Subject storage_subject() {
  return {.probe = Probe{"storage", 5s, /*fast=*/true, /*alone=*/false, gather_storage},
          .checks = {{"/dev/shm", judge_shared_memory},
                     {"memory folder", judge_memory_folder},
                     {"TMPDIR", judge_temporary_folder}}};
}

}  // namespace ddprun::doctor
