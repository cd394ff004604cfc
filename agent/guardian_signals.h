#pragma once
// The guardian's signals: blocked for as long as it lives, and read from a descriptor instead. Used
// by guardian.cc only.

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "common/assert.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

inline constexpr std::array kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                          SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

inline bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Blocks what the guardian handles, for as long as it lives, and reads it from a descriptor
// instead.
class GuardianSignals {
 public:
  explicit GuardianSignals(const std::vector<int>& also_forwarded) {
    std::vector<int> forwarded(kForwarded.begin(), kForwarded.end());
    forwarded.insert(forwarded.end(), also_forwarded.begin(), also_forwarded.end());
    sigset_t handled;
    ::sigemptyset(&handled);
    ::sigaddset(&handled, SIGCHLD);
    for (const int signal : forwarded) {
      if (!is_ignored(signal)) ::sigaddset(&handled, signal);
    }
    ::sigprocmask(SIG_BLOCK, &handled, &before_);
    pipe_before_ = ::signal(SIGPIPE, SIG_IGN);
    fd_ = UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    DDPRUN_ASSERT(fd_);
  }
  ~GuardianSignals() {
    ::signal(SIGPIPE, pipe_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return fd_.get(); }
  const sigset_t& mask_before() const { return before_; }

  // 0 if none is waiting.
  int next() const {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_{};
  sighandler_t pipe_before_ = SIG_DFL;
  UniqueFd fd_;
};

}  // namespace ddprun::agent
