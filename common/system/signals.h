#pragma once
// Signals: read as messages that name their sender, held back for a while, and as this process
// found them at its start.

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <vector>

#include "common/error.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"

namespace ddprun {

// Signals as messages that name their sender: blocked from the construction on, for this thread and
// those that it starts, and read from a descriptor. Agents and the daemon that a launcher started
// obey their launcher by it: a batch system may signal every process of a job step, and what is
// meant for the launcher reaches them as well, once from there and once from their launcher.
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

// While one lives, its thread gets no signal, but for those of its own faults, which a program that
// blocks them could not report; what is started meanwhile inherits that.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      ::sigdelset(&all, fault);
    }
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_{};
};

// The signals of a program between its first instruction and the handlers that it installs later.
// Included by the file of main() alone, which calls start_signals() first.
//
// - Before main they are blocked: process 1 of a container has no default actions, so the kernel
//   discards a signal that is neither blocked nor handled.
// - From start_signals() on a signal that ends a program ends this one, at once and wherever it
//   waits (for a name server that never answers): nothing has been started yet.
// - From start_signals_as() on the same holds for the user's own signals.
// - GuardianSignals and asio's signal_set take over from there.
//
// A child that executes another program has none of it.

namespace start_signals_detail {

constexpr unsigned long bit_of(int signal) { return 1UL << (signal - 1); }

// By a system call alone: no library has been initialised yet, a sanitizer's neither.
__attribute__((no_sanitize("address", "thread", "undefined"))) inline void block_first() {
  constexpr unsigned long kSet = bit_of(SIGINT) | bit_of(SIGTERM) | bit_of(SIGHUP) |
                                 bit_of(SIGQUIT) | bit_of(SIGUSR1) | bit_of(SIGUSR2);
#if defined(__x86_64__)
  long outcome = SYS_rt_sigprocmask;
  register const unsigned long bytes asm("r10") = sizeof kSet;
  asm volatile("syscall"
               : "+a"(outcome)
               : "D"(static_cast<long>(SIG_BLOCK)), "S"(&kSet), "d"(0L), "r"(bytes)
               : "rcx", "r11", "memory");
#else
  ::syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kSet, nullptr, sizeof kSet);
#endif
}

__attribute__((section(".preinit_array"), used)) static void (*first_of_all)() = &block_first;

// As its default action would, which process 1 does not have.
inline void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(exit_code_of_signal(signal));
}

inline void end_preempted(int) { ::_exit(kExitPreempted); }

// Which of SIGUSR1 and SIGUSR2 has come; what it means is not known yet. 0: none.
inline volatile sig_atomic_t held = 0;
inline void hold(int signal) { held = signal; }

inline bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

inline void answer(int signal, void (*by)(int)) {
  struct sigaction action {};
  action.sa_handler = by;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace start_signals_detail

// A program inherits what its parent ignores and blocks. With SIGCHLD ignored the kernel reaps our
// children itself, and how they ended is lost; what is blocked would never reach a handler. SIGXFSZ
// is ignored instead: a file that may not grow is a failure like a full disk, and no reason to die.
// SIGINT, SIGQUIT and SIGTERM end us even where they were ignored, see guarded_process.h.
// Everything else that is ignored stays so. With `options_follow`, SIGUSR1 and SIGUSR2 wait for
// start_signals_as().
inline void start_signals(bool options_follow = false) {
  namespace detail = start_signals_detail;
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) detail::answer(signal, detail::end_by);
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) {
    const bool waits = options_follow && signal != SIGHUP;
    if (!detail::is_ignored(signal)) detail::answer(signal, waits ? detail::hold : detail::end_by);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Those of `ending` end this program; those of `preempting` with the exit code of a node that has
// left.
inline void start_signals_as(const std::vector<int>& ending, const std::vector<int>& preempting) {
  namespace detail = start_signals_detail;
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    if (!detail::is_ignored(signal)) detail::answer(signal, detail::end_by);
  }
  for (const int signal : ending) {
    if (!detail::is_ignored(signal)) detail::answer(signal, detail::end_by);
  }
  for (const int signal : preempting) {
    if (!detail::is_ignored(signal)) detail::answer(signal, detail::end_preempted);
  }
  if (detail::held != 0) ::raise(detail::held);
}

}  // namespace ddprun
