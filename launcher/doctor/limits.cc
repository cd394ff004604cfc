// The limits of ulimit, and what else keeps processes from being made.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/system/descriptors.h"
#include "common/system/random_id.h"
#include "common/system/variable.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/probes.h"
#include "launcher/plan/resolve_name.h"

namespace ddprun::doctor {
namespace {

namespace fs = std::filesystem;

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

// The kernel does not hold root to ulimit -u.
void tasks_by_user(Tasks& tasks) {
  rlimit processes{};
  if (::geteuid() == 0 || ::getrlimit(RLIMIT_NPROC, &processes) != 0) return;
  if (processes.rlim_cur == RLIM_INFINITY) return;
  tasks.no_more_than(limit(processes.rlim_cur) - tasks_of_user(), "ulimit -u");
}

std::int64_t entries(const fs::path& folder) {
  std::error_code error;
  std::int64_t count = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

void probe_limits(const ProbeRequest&, Facts& facts) {
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
  facts.set(fact::kInfiniBand, entries("/sys/class/infiniband"));

  Tasks tasks;
  tasks_by_user(tasks);
  if (const auto left = agent::room_in_cgroups("pids", "pids.max", "pids.current")) {
    tasks.no_more_than(*left, "pids.max of a cgroup");
  }
  facts.set(fact::kTasksLeft, tasks.left);
  if (!tasks.by.empty()) facts.set(fact::kTasksBy, std::move(tasks.by));
}

// Shared memory and the temporary folder: how much room there is, and whether it can be written to.

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

// What this node's own name means here.
void probe_names(const ProbeRequest&, Facts& facts) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return;
  using Clock = std::chrono::steady_clock;
  const TimePoint began = Clock::now();
  std::string addresses;
  for (const std::string& address : launcher::resolve_name(name.data())) {
    addresses += (addresses.empty() ? "" : " ") + address;
  }
  const std::chrono::duration<double, std::milli> took = Clock::now() - began;
  facts.set(fact::kOwnAddresses, addresses);
  facts.set(fact::kNameMs, took.count());
}

}  // namespace ddprun::doctor
