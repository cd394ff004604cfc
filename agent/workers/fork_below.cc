#include "agent/workers/fork_below.h"

#include <cerrno>

#if defined(__x86_64__) && defined(__linux__)

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

#include "agent/workers/rseq_area.h"

namespace {

using ddprun::agent::RseqArea;

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // Of libraries' handlers of forks.

// In memory of its own, which the process between fills.
struct Attempt {
  ucontext_t caller;      // Where the fork goes on, on the caller's stack.
  volatile bool is_fork;  // In the fork.
  // In the caller: what fork() has returned, or -errno. As it is if the process between is killed.
  volatile int outcome = -EINTR;
};

// The process between: in the caller's memory, on a stack of its own.
int fork_once(void* memory) {
  Attempt& attempt = *static_cast<Attempt*>(memory);
  const pid_t pid = ::fork();
  if (pid == 0) {
    attempt.is_fork = true;
    ::setcontext(&attempt.caller);
  }
  attempt.outcome = pid > 0 ? pid : -errno;
  return 0;
}

int fork_by(Attempt& attempt, char* stack) {
  ::getcontext(&attempt.caller);  // Returns once more, in the fork.
  if (attempt.is_fork) return 0;
  const int between =
      ::clone(fork_once, stack + kStackBytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &attempt);
  if (between < 0) return -errno;
  while (::waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
  }
  return attempt.outcome;
}

void call(void (*hook)()) {
  if (hook) hook();
}

}  // namespace

int ddprun_fork_below(const ForkHooks* hooks) {
  constexpr std::size_t kBytes = kStackBytes + sizeof(Attempt) + sizeof(RseqArea);
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  char* const stack = static_cast<char*>(memory);
  // Nothing of a signal may run in the process between.
  sigset_t all, before;
  ::sigfillset(&all);
  call(hooks->before);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  // A process that shares memory by clone() has no such area, and its fork none either.
  RseqArea* const area = new (stack + kStackBytes + sizeof(Attempt)) RseqArea();
  if (RseqArea::exists()) *area = RseqArea::withdraw();
  const int pid = fork_by(*new (stack + kStackBytes) Attempt(), stack);
  if (area->bytes != 0) area->give();
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  call(pid == 0 ? hooks->after_in_child : hooks->after_in_parent);
  ::munmap(memory, kBytes);
  return pid;
}

#else

int ddprun_fork_below(const ForkHooks*) { return -ENOSYS; }

#endif
