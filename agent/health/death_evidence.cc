#include "agent/health/death_evidence.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <utility>

#include "agent/process/proc_file.h"
#include "common/system/descriptors.h"
#include "common/system/own_process.h"
#include "common/text/display.h"
#include "common/text/figures.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{64} * 1024;

// For files of /proc and /sys, which have no size before they are read.
std::string read_small(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> part;
  while (file && text.size() < kFileBytesMax) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// "6,1234,5678,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:..."
std::string killed_text(std::string_view record, const std::string& killed) {
  const std::size_t at = record.find(killed);
  if (at == std::string_view::npos) return "";
  const std::size_t head = record.find(';');
  const std::size_t begin = head < at ? head + 1 : 0;
  const std::size_t end = record.find_first_of(",\n", at);
  return std::string(record.substr(begin, end == std::string_view::npos ? end : end - begin));
}

struct KernelLog {
  std::string text;       // The record that names the process; empty: none does.
  bool is_whole = false;  // Since the given time, so that it would name the process.
};

// What the kernel's log has about the death of `pid`.
KernelLog kernel_log_on(const std::string& path, int pid, std::int64_t since_us) {
  const std::string killed = "Killed process " + std::to_string(pid) + " (";
  KernelLog found;
  bool is_first = true;
  read_kernel_log(path, [&](std::string_view record) {
    if (std::exchange(is_first, false)) {
      const auto time = kernel_log_time(record);
      found.is_whole = time && *time < since_us;
    }
    found.text = killed_text(record, killed);
    return found.text.empty();
  });
  return found;
}

// The kernel's log has the numbers of the first namespace of processes.
bool has_kernels_numbers(const std::string& root) {
  constexpr std::string_view kFirst = "pid:[4026531836]";
  std::array<char, 64> name{};
  const ssize_t size = ::readlink((root + "/proc/self/ns/pid").c_str(), name.data(), name.size());
  return size > 0 && std::string_view(name.data(), static_cast<std::size_t>(size)) == kFirst;
}

std::int64_t kernels_now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1'000;
}

std::string times(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " time" : " times");
}

}  // namespace

std::uint64_t oom_kills_in(std::string_view text) {
  constexpr std::string_view kWord = "oom_kill ";
  std::size_t at = text.starts_with(kWord) ? 0 : text.find("\noom_kill ");
  if (at == std::string_view::npos) return 0;
  at = text.find(kWord, at) + kWord.size();
  std::uint64_t count = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), count);
  return count;
}

MemoryCgroup memory_cgroup_in(std::string_view text) {
  MemoryCgroup unified;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string controllers =
        "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const std::string path(line.substr(second + 1));
    if (controllers == ",,") unified = {.v2 = true, .path = path};
    if (controllers.find(",memory,") != std::string::npos) return {.v2 = false, .path = path};
  }
  return unified;
}

OomWatch::OomWatch(std::string root) : root_(std::move(root)), cgroup_file_(find_cgroup_file()) {}

// In a container the path that /proc shows may not be there; its root is then our own group.
std::string OomWatch::find_cgroup_file() const {
  const MemoryCgroup group = memory_cgroup_in(read_small(root_ + "/proc/self/cgroup"));
  const char* file = group.v2 ? "/memory.events" : "/memory.oom_control";
  for (const char* mount : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    for (const std::string& path : {group.path, std::string()}) {
      std::string candidate = root_ + mount + path + file;
      if (::access(candidate.c_str(), R_OK) == 0) return candidate;
    }
  }
  return "";
}

OomWatch::Counts OomWatch::count() const {
  return {.cgroup = cgroup_file_.empty() ? 0 : oom_kills_in(read_small(cgroup_file_)),
          .machine = oom_kills_in(read_small(root_ + "/proc/vmstat"))};
}

void OomWatch::begin() {
  at_start_ = count();
  began_us_ = kernels_now_us();
  last_ = {-1, ""};
}

std::string OomWatch::evidence(int pid) const {
  const Counts now = count();
  const std::uint64_t here = now.cgroup - at_start_.cgroup;
  const std::uint64_t machine = now.machine - at_start_.machine;
  if (here == 0 && machine == 0) return "";
  if (last_.first == pid) return last_.second;  // The log may be long.
  const auto found = [&]() -> std::string {
    const KernelLog log = kernel_log_on(root_ + "/dev/kmsg", pid, began_us_);
    if (!log.text.empty()) {
      return "the kernel's out-of-memory killer ended it (kernel log: " + log.text + ")";
    }
    if (log.is_whole && has_kernels_numbers(root_)) return "";
    if (here > 0) {
      return "the kernel's out-of-memory killer struck " + times(here) +
             " in this job's memory cgroup since the workers were started";
    }
    return "the kernel's out-of-memory killer struck " + times(machine) +
           " on this machine since the workers were started";
  };
  last_ = {pid, found()};
  return last_.second;
}

namespace {

// The number behind `word`; -1: there is none.
std::int64_t number_after(std::string_view text, std::string_view word) {
  std::size_t at = text.find(word);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_not_of(" '\"", at + word.size());
  std::int64_t number = -1;
  if (at != std::string_view::npos) {
    std::from_chars(text.data() + at, text.data() + text.size(), number);
  }
  return number;
}

bool may_be_of_gpu(const WorkerDeath& death) {
  switch (death.fault) {
    case Fault::kGpuAssert:
    case Fault::kGpuAccess:
    case Fault::kGpuBroken:
    case Fault::kNoGpu:
    case Fault::kNccl: return true;
    case Fault::kException:
    case Fault::kCrash: return death.detail.find("CUDA") != std::string::npos;
    default: return false;
  }
}

}  // namespace

std::optional<Xid> xid_in(std::string_view line) {
  constexpr std::string_view kWord = "NVRM: Xid";
  const std::size_t begin = line.find(kWord);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view text = line.substr(begin);
  const std::int64_t number = number_after(text, "): ");
  if (number <= 0) return std::nullopt;
  return Xid{.number = static_cast<int>(number),
             .pid = static_cast<int>(std::max<std::int64_t>(0, number_after(text, "pid="))),
             .text = without_escapes(std::string(text.substr(0, 240)))};
}

// ECC errors that could not be corrected (48, 94, 95, 140), rows that cannot be remapped (64),
// NVLink (74), a GPU off the bus (79), high rates of corrected errors (92), firmware that does not
// answer (119, 120), chip-to-chip links (121), and a GPU that must be reset (143, 154).
bool is_of_hardware(int xid) {
  constexpr std::array kNumbers = {48, 64, 74, 79, 92, 94, 95, 119, 120, 121, 140, 143, 154};
  return std::find(kNumbers.begin(), kNumbers.end(), xid) != kNumbers.end();
}

void add_xid(const Xid& xid, WorkerDeath& death) {
  if (!is_of_hardware(xid.number) && (xid.pid == 0 || xid.pid != death.pid)) return;
  if (is_of_hardware(xid.number)) death.fault = Fault::kGpuBroken;
  death.evidence = "kernel log: " + xid.text;
}

void GpuLog::add_to(WorkerDeath& death) const {
  if (!may_be_of_gpu(death)) return;
  std::optional<Xid> best;
  read_kernel_log(root_ + "/dev/kmsg", [&](std::string_view line) {
    const auto xid = xid_in(line);
    const auto time = kernel_log_time(line);
    if (!xid || !time || *time < began_) return true;
    const bool better =
        !best || (is_of_hardware(xid->number) && !is_of_hardware(best->number)) ||
        (xid->pid == death.pid && best->pid != death.pid && !is_of_hardware(best->number));
    if (better) best = xid;
    return true;
  });
  if (best) add_xid(*best, death);
}

std::string time_limit_over(const std::string& end, const std::string& job, std::int64_t now) {
  // Clocks of two machines may differ; Slurm checks twice per minute, and waits half a minute
  // between the two signals.
  constexpr std::int64_t kEarly = 5, kLate = 150;
  const std::int64_t at = as_number<std::int64_t>(end).value_or(0);
  if (at <= 0 || now < at - kEarly || now > at + kLate) return "";
  return "the time limit of Slurm job " + (job.empty() ? "?" : job) + " is reached";
}

std::string time_limit_over(int signal) {
  if (signal != SIGTERM && signal != SIGKILL && signal != SIGXCPU) return "";
  return time_limit_over(environment_variable("SLURM_JOB_END_TIME"),
                         environment_variable("SLURM_JOB_ID"), std::time(nullptr));
}

}  // namespace ddprun::agent
