#pragma once
// Signals as messages that name their sender: blocked from the construction on, for this thread and
// those that it starts, and read from a descriptor. Agents and the daemon that a launcher started
// obey their launcher by it: a batch system may signal every process of a job step, and what is
// meant for the launcher reaches them as well, once from there and once from their launcher.

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <vector>

#include "common/error.h"
#include "common/system/unique_fd.h"

namespace ddprun {

struct SentSignal {
  int signal = 0;  // 0: none is waiting.
  int sender = 0;  // Its process; 0: the kernel, or a process that this one cannot name.
};

class SentSignals {
 public:
  static Result<SentSignals> hold(const std::vector<int>& signals) {
    sigset_t held;
    ::sigemptyset(&held);
    for (const int signal : signals) ::sigaddset(&held, signal);
    ::sigprocmask(SIG_BLOCK, &held, nullptr);
    SentSignals sent;
    sent.fd_ = UniqueFd(::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!sent.fd_) return errno_failure("opening a descriptor for signals");
    return sent;
  }

  // Another descriptor of the same, for a loop that closes what it watches: readable while a signal
  // waits.
  int watched() const { return ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0); }

  SentSignal next() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return {};
    return {static_cast<int>(info.ssi_signo), static_cast<int>(info.ssi_pid)};
  }

 private:
  UniqueFd fd_;
};

}  // namespace ddprun
