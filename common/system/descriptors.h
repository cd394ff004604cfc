#pragma once
// File descriptors: one with an owner, one in reserve, and those that go to another process.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "common/error.h"

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

}  // namespace ddprun
