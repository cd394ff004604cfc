#include "worker_sdk/timer/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace ddprun::worker_sdk {

std::optional<std::chrono::nanoseconds> RunDelay::of_this_thread() {
  if (!file_ || thread_ != std::this_thread::get_id()) {
    file_ = UniqueFd(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
    thread_ = std::this_thread::get_id();
  }
  char text[96];  // Three numbers: ns on a CPU, ns ready and not on one, turns.
  const ssize_t size = file_ ? ::pread(file_.get(), text, sizeof(text), 0) : -1;
  if (size <= 0) return std::nullopt;
  const std::string_view line(text, static_cast<std::size_t>(size));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::int64_t ns = 0;
  const auto read = std::from_chars(line.data() + space + 1, line.data() + line.size(), ns);
  if (read.ec != std::errc{}) return std::nullopt;
  return std::chrono::nanoseconds(ns);
}

}  // namespace ddprun::worker_sdk
