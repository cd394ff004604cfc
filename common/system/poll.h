#pragma once
// Waiting for descriptors until a deadline, and writing all of a text to one.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <string_view>

#include "common/time.h"

namespace ddprun {

// Waits until one of `polls` is ready or `until` has passed; without a deadline, until one is
// ready. Returns after a minute at most if there is a deadline, and after a signal, so callers
// loop. The result is that of poll().
inline int poll_until(std::span<pollfd> polls, const std::optional<TimePoint>& until) {
  constexpr std::int64_t kLongestMs = 60'000;
  int timeout = -1;
  if (until) {
    // Rounded up, so that the deadline has passed when nothing is ready.
    const auto left = std::chrono::ceil<Milliseconds>(*until - TimePoint::clock::now());
    timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kLongestMs));
  }
  return ::poll(polls.data(), polls.size(), timeout);
}

// Whether the descriptor is readable, or its other end is closed, now.
inline bool is_readable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

// Writes all of `text` to a blocking descriptor. False, and errno is why: the rest is not written.
inline bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace ddprun
