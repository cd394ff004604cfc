#pragma once
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

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <vector>

#include "common/exit_status.h"

namespace ddprun {

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
// SIGINT, SIGQUIT and SIGTERM end us even if they were ignored, see guarded_process.h. Everything
// else that is ignored stays so. With `options_follow`, SIGUSR1 and SIGUSR2 wait for
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
