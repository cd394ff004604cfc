#include "agent/process/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "common/system/descriptors.h"

namespace ddprun::agent {

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
