#include "agent/process/proc_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "common/system/descriptors.h"

namespace ddprun::agent {
namespace {

// Of /proc/<pid>/stat, see proc(5).

}  // namespace

std::string read_proc_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char block[4096];
  for (ssize_t got = 0; file && (got = ::read(file.get(), block, sizeof block)) > 0;)
    text.append(block, static_cast<std::size_t>(got));
  return text;
}

std::vector<int> numbered_entries(const std::string& folder) {
  std::vector<int> numbers;
  DIR* dir = ::opendir(folder.c_str());
  if (!dir) return numbers;
  while (const dirent* entry = ::readdir(dir)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])))
      numbers.push_back(std::atoi(entry->d_name));
  }
  ::closedir(dir);
  return numbers;
}

// Whole entries only: a value that ends like ours is not ours.
bool has_variable(int pid, const std::string& entry) {
  const std::string environment =
      '\0' + read_proc_file("/proc/" + std::to_string(pid) + "/environ") + '\0';
  return environment.find('\0' + entry + '\0') != std::string::npos;
}

bool handles_signal(int pid, int signal) {
  const std::string status = read_proc_file("/proc/" + std::to_string(pid) + "/status");
  return std::ranges::any_of(
      std::array{"\nSigBlk:", "\nSigIgn:", "\nSigCgt:"}, [&](const char* row) {
        const std::size_t at = status.find(row);
        if (at == std::string::npos) return false;
        const auto mask = std::strtoull(status.c_str() + at + std::strlen(row), nullptr, 16);
        return (mask >> (signal - 1) & 1) != 0;
      });
}

std::uint64_t ticks_since_boot() {
  static const auto kPerSecond = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kPerSecond +
         static_cast<std::uint64_t>(now.tv_nsec) * kPerSecond / 1'000'000'000;
}

ProcStat parse_proc_stat(const std::string& text) {
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open ||
      close + 4 > text.size())
    return {};
  // "ppid pgrp session tty_nr tpgid flags", 4 others, "utime stime", 6 others, "starttime vsize
  // rss".
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of the kernel.
  ProcStat stat{.name = text.substr(open + 1, close - open - 1), .state = text[close + 2]};
  unsigned flags = 0;
  unsigned long long started = 0, user = 0, system = 0, resident = 0;
  (void)std::sscanf(text.c_str() + close + 4,
                    "%d %d %d %*d %*d %u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu "
                    "%*u %llu",
                    &stat.parent, &stat.group, &stat.session, &flags, &user, &system, &started,
                    &resident);
  stat.started = started;
  stat.ran = user + system;
  stat.resident = resident;
  stat.exiting = (flags & kExiting) != 0 || stat.state == 'Z' || stat.state == 'X';
  return stat;
}

ProcStat read_proc_stat(int pid, const std::string& proc) {
  return parse_proc_stat(read_proc_file(proc + "/" + std::to_string(pid) + "/stat"));
}

bool is_halted(char state) { return state == 'T' || state == 't'; }

std::string halted_text(char state) {
  return state == 't' ? "a debugger holds it" : "it is stopped (SIGSTOP, or a debugger)";
}

std::string describe_process(int pid, const std::string& proc) {
  const ProcStat stat = read_proc_stat(pid, proc);
  std::string text =
      "pid " + std::to_string(pid) + " (" + stat.name + "), state " + std::string(1, stat.state);
  if (stat.state != 'D') return text;
  std::string where = read_proc_file(proc + "/" + std::to_string(pid) + "/wchan");
  const bool known = !where.empty() && where != "0" &&
                     std::all_of(where.begin(), where.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  return text + " (uninterruptible sleep" + (known ? " in " + where : "") + ")";
}

void read_kernel_log(const std::string& path, const std::function<bool(std::string_view)>& take) {
  constexpr int kRecordsMax = 200'000;
  const UniqueFd log(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 8192> record;
  for (int i = 0; log && i < kRecordsMax; ++i) {
    const ssize_t got = ::read(log.get(), record.data(), record.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;  // Older ones were overwritten.
    if (got <= 0) break;
    std::string_view rest(record.data(), static_cast<std::size_t>(got));
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      if (!take(line)) return;
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    }
  }
}

std::optional<std::int64_t> kernel_log_time(std::string_view line) {
  for (int commas = 0; commas < 2; ++commas) {
    const std::size_t comma = line.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    line.remove_prefix(comma + 1);
  }
  std::int64_t time = 0;
  const auto read = std::from_chars(line.data(), line.data() + line.size(), time);
  return read.ec == std::errc() ? std::optional(time) : std::nullopt;
}

}  // namespace ddprun::agent
