#pragma once
// One descriptor that is kept for when none is left: a process that cannot accept connections any
// more can close those that wait with it, and their other ends learn so at once. Used by AcceptLoop
// and StoreHost.

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/system/unique_fd.h"

namespace ddprun {

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

}  // namespace ddprun
