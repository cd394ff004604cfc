#pragma once
// What programs print themselves, help, tables and reports, goes to standard output through
// write_output(). Each main ends with after_output(), which reports what could not be written.
// Workers' lines do not come here (agent/output).

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/exit_status.h"
#include "common/system/log.h"

namespace ddprun {

// What stopped the first write that failed; 0: none has.
inline int output_errno = 0;

// A descriptor that our parent has closed would be given to the next file or socket that is opened,
// and what is printed would be written there. Called first in every main.
inline void occupy_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // As with a closed descriptor, what is read or written fails with EBADF.
    const int taken = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (taken != fd && taken >= 0) ::close(taken);
  }
}

// After a failure nothing more is written.
inline void write_output(std::string_view text) {
  while (!text.empty() && output_errno == 0) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) text.remove_prefix(static_cast<std::size_t>(n));
    if (n >= 0 || errno == EINTR) continue;
    pollfd ready{STDOUT_FILENO, POLLOUT, 0};  // Others may have made it non-blocking.
    if (errno != EAGAIN || ::poll(&ready, 1, -1) < 0) output_errno = errno;
  }
}

// Why not all was written; a second call succeeds. A reader that needs no more, such as `head`, is
// not a failure.
inline Result<void> output_written() {
  errno = std::exchange(output_errno, 0);
  if (errno == 0 || errno == EPIPE) return {};
  return errno_failure("cannot write standard output");
}

// The exit code of a program that would end with `status`.
inline int after_output(int status, int if_lost = kExitFailed) {
  const auto written = output_written();
  if (written) return status;
  log::error(to_string(written.error()));
  return status == kExitOk ? if_lost : status;
}

}  // namespace ddprun
