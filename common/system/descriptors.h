#pragma once
// File descriptors: one with an owner, one in reserve, those that go to another process; waiting
// for some until a deadline, and writing all of a text to one.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/time.h"

namespace ddprun {

// A file descriptor with one owner.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Closes all descriptors of this process from `first` on, or has the next program be without them.
void close_from(int first);
void close_on_exec_from(int first);

// One descriptor that is kept for when none is left: a process that cannot accept connections any
// more can close those that wait with it, and their other ends learn so at once. Used by AcceptLoop
// and StoreHost.
class SpareDescriptor {
 public:
  SpareDescriptor() { take(); }

  // Accepts and closes the connections that wait at `listening`, a non-blocking socket. Returns
  // their number.
  int turn_away(int listening) {
    constexpr int kMost = 4096;  // More than a backlog holds.
    int count = 0;
    fd_.reset();
    while (count < kMost) {
      const UniqueFd connection(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
      if (connection) {
        ++count;
      } else if (errno != EINTR && errno != ECONNABORTED) {
        break;
      }
    }
    take();
    return count;
  }

 private:
  void take() { fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  UniqueFd fd_;
};

// Descriptors that go to another process over a non-blocking SOCK_SEQPACKET socket (SCM_RIGHTS,
// unix(7)). Used by the fork server's requests and by the store at the endpoint's port.
inline constexpr std::size_t kDescriptorsAtOnce = 8;

// One packet, which is not empty, with at most kDescriptorsAtOnce descriptors. Copies them: the
// caller's stay open. The Failure's code is errno's, EAGAIN if the socket is full.
Result<void> send_descriptors(int socket, std::string_view packet, std::span<const int> descriptors,
                              const char* what);

// The first descriptor of the next packet; nothing if none waits. The end of the other side is a
// Failure.
Result<std::optional<UniqueFd>> receive_descriptor(int socket);

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
