#pragma once
// Signals: read as messages that name their sender, and held back, as every thread of the product
// does; and how processes that share memory wake one another.

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <initializer_list>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
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

// The signal by which a launcher passes another one on to its agents, as the value that goes with
// it. A real-time one: of two SIGUSR1 that wait for a process the kernel keeps the first, and with
// it the sender, so that one from the batch system would hide that of the launcher.
inline int passed_on_signal() {
  constexpr int kAboveThoseOfLibraries = 5;
  return SIGRTMIN + kAboveThoseOfLibraries;
}

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
    const bool passed_on = static_cast<int>(info.ssi_signo) == passed_on_signal();
    if (passed_on && info.ssi_code == SI_QUEUE && info.ssi_int > 0 && info.ssi_int < SIGRTMIN) {
      return {info.ssi_int, static_cast<int>(info.ssi_pid)};
    }
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

// A thread of ours in a process that may be a user's program: no handler of that program runs in
// it. Every thread of the product is made here; tests/tidy checks that.

// `name`, of at most 15 bytes, is what debuggers and /proc show. Throws as std::thread does.
template <class Run>
std::thread own_thread(const char* name, Run&& run) {
  const SignalsHeld held;
  std::thread thread(std::forward<Run>(run));
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

// A counter in memory that processes share, to sleep on until another one rings it. The agent rings
// the one of a progress page, the SDK listens.

using SharedBell = std::atomic<std::uint32_t>;
static_assert(SharedBell::is_always_lock_free && sizeof(SharedBell) == sizeof(std::uint32_t));

inline void ring(SharedBell& bell) noexcept {
  bell.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

// Sleeps until the bell has been rung since `seen` was read. May return early.
inline void await_ring(SharedBell& bell, std::uint32_t seen) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell), FUTEX_WAIT, seen, nullptr, nullptr,
            0);
}

}  // namespace ddprun
