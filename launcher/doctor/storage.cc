// Shared memory and the temporary folder: how much room they have, and whether they can be written.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/system/descriptors.h"
#include "common/system/random_id.h"
#include "common/system/variable.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr Whole kShmFree{"shm_free_bytes"};
constexpr Whole kShmSize{"shm_bytes"};
constexpr Text kShmError{"shm_error"};  // Why nothing can be written there.
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

void gather_storage(const ProbeRequest&, Facts& facts) {
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
          .checks = {{"/dev/shm", judge_shared_memory}, {"TMPDIR", judge_temporary_folder}}};
}

}  // namespace ddprun::doctor
