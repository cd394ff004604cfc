#include "agent/health/oom_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "agent/process/kernel_log.h"
#include "common/system/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{64} * 1024;

// For files of /proc and /sys, whose size is not known before they are read.
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

// What the kernel's log says about the death of `pid`.
std::string kernel_log_on(const std::string& path, int pid) {
  const std::string killed = "Killed process " + std::to_string(pid) + " (";
  std::string found;
  read_kernel_log(path, [&](std::string_view line) {
    found = killed_text(line, killed);
    return found.empty();
  });
  return found;
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

void OomWatch::begin() { at_start_ = count(); }

std::string OomWatch::evidence(int pid) const {
  const Counts now = count();
  const std::uint64_t here = now.cgroup - at_start_.cgroup;
  const std::uint64_t machine = now.machine - at_start_.machine;
  if (here == 0 && machine == 0) return "";
  if (const std::string log = kernel_log_on(root_ + "/dev/kmsg", pid); !log.empty()) {
    return "the kernel's out-of-memory killer ended it (kernel log: " + log + ")";
  }
  if (here > 0) {
    return "the kernel's out-of-memory killer struck " + times(here) +
           " in this job's memory cgroup since the workers were started";
  }
  return "the kernel's out-of-memory killer struck " + times(machine) +
         " on this machine since the workers were started";
}

}  // namespace ddprun::agent
