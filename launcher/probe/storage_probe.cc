// Shared memory and the temporary folder: how much room there is, and whether it can be written to.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/system/descriptors.h"
#include "common/system/random_id.h"
#include "common/system/variable.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/probe/probe.h"

namespace ddprun::doctor {
namespace {

// Why a file cannot be made and written in `folder`; empty: it can. Nothing is left there.
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

}  // namespace

void probe_storage(const ProbeRequest&, Facts& facts) {
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
    // File systems that make them as they go have no number of them.
    if (room.f_files > 0) facts.set(fact::kTmpInodes, static_cast<std::int64_t>(room.f_favail));
    facts.set(fact::kTmpNoExec, std::int64_t{(room.f_flag & ST_NOEXEC) != 0});
  }
  if (const std::string why = why_not_writable(folder); !why.empty()) {
    facts.set(fact::kTmpError, why);
  }
}

}  // namespace ddprun::doctor
