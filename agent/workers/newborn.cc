#include "agent/workers/newborn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cerrno>

#include "agent/workers/process_host.h"
#include "common/exit_status.h"

namespace ddprun::agent {
namespace {

constexpr int kSignalMax = 64;
constexpr std::size_t kKernelSigsetBytes = 8;
constexpr unsigned kDescriptorGuess =
    65536;  // How far to close where the kernel has no close_range.

DDPRUN_IN_CHILD bool fail(ChildPlan* plan, Stage stage, long error) {
  plan->error = static_cast<int>(error);
  plan->failed = stage;
  // Before the kernel tells the parent that we have left its memory.
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return false;
}

DDPRUN_IN_CHILD bool call(ChildPlan* plan, Stage stage, long number, long a = 0, long b = 0,
                          long c = 0, long d = 0) {
  const long outcome = raw_call(number, a, b, c, d);
  return outcome >= 0 || fail(plan, stage, -outcome);
}

DDPRUN_IN_CHILD bool arm_death_signal(ChildPlan* plan) {
  if (!call(plan, Stage::kDeathSignal, SYS_prctl, PR_SET_PDEATHSIG, SIGKILL)) return false;
  return raw_call(SYS_getppid) == plan->parent || fail(plan, Stage::kParentGone, ESRCH);
}

// The ends by which a worker talks, in the order of their numbers: 1, 2 and 3.
constexpr int kEnds = 3;
static_assert(kLinkDescriptor == kEnds);

// With slots the table is the parent's own, which goes on working with it. What we need of it is
// put at its beginning, and the rest is not even copied.
DDPRUN_IN_CHILD bool take_table(ChildPlan* plan, int* ends) {
  if (plan->slots == nullptr) return true;
  for (int i = 0; i < kEnds; ++i) {
    if (ends[i] < 0) continue;
    if (!call(plan, Stage::kStreams, SYS_dup3, ends[i], plan->slots[i], O_CLOEXEC)) return false;
    ends[i] = plan->slots[i];
  }
  return call(plan, Stage::kStreams, SYS_close_range, plan->table_end, ~0U, CLOSE_RANGE_UNSHARE);
}

// Descriptors are first moved out of the way of 0 to 3, so that any of them may be given as any.
DDPRUN_IN_CHILD bool set_up_ends(ChildPlan* plan, const int* ends) {
  long moved[kEnds] = {-1, -1, -1};
  for (int i = 0; i < kEnds; ++i) {
    moved[i] = ends[i];
    if (ends[i] < 0 || ends[i] > kLinkDescriptor) continue;
    moved[i] = raw_call(SYS_fcntl, ends[i], F_DUPFD, kLinkDescriptor + 1);
    if (moved[i] < 0) return fail(plan, Stage::kStreams, -moved[i]);
  }
  for (int i = 0; i < kEnds; ++i) {
    if (moved[i] >= 0 && !call(plan, Stage::kStreams, SYS_dup3, moved[i], 1 + i, 0)) return false;
  }
  return true;
}

DDPRUN_IN_CHILD long open_null() {
  return raw_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>("/dev/null"), O_RDONLY, 0);
}

// Every other descriptor is closed.
DDPRUN_IN_CHILD bool set_up_streams(ChildPlan* plan) {
  int ends[kEnds] = {plan->stdout_fd, plan->stderr_fd, plan->link_fd};
  if (!take_table(plan, ends) || !set_up_ends(plan, ends)) return false;
  const long null = plan->slots && plan->null_fd >= 0 ? plan->null_fd : open_null();
  if (null < 0) return fail(plan, Stage::kStreams, -null);
  if (null != 0 && !call(plan, Stage::kStreams, SYS_dup3, null, 0, 0)) return false;
  const unsigned first = kLinkDescriptor + (plan->link_fd >= 0 ? 1 : 0);
  if (raw_call(SYS_close_range, first, ~0U, 0) < 0) {
    for (unsigned fd = first; fd < kDescriptorGuess; ++fd) raw_call(SYS_close, fd);
  }
  return true;
}

DDPRUN_IN_CHILD bool bind(ChildPlan* plan) {
  return plan->processors == nullptr ||
         call(plan, Stage::kProcessors, SYS_sched_setaffinity, 0,
              static_cast<long>(plan->processors_bytes), reinterpret_cast<long>(plan->processors));
}

// What cannot be undone here the program will find out.
DDPRUN_IN_CHILD bool reset_limits(ChildPlan* plan) {
  if (plan->descriptors) {
    raw_call(SYS_prlimit64, 0, RLIMIT_NOFILE, reinterpret_cast<long>(plan->descriptors));
  }
  if (plan->processes) {
    raw_call(SYS_prlimit64, 0, RLIMIT_NPROC, reinterpret_cast<long>(plan->processes));
  }
  return true;
}

DDPRUN_IN_CHILD bool reset_signals(ChildPlan* plan) {
  const unsigned long zero[8] = {};  // A kernel sigaction of SIG_DFL, and an empty kernel sigset.
  for (int number = 1; number <= kSignalMax; ++number) {  // execve() takes care of handlers.
    if ((plan->ignored_signals >> (number - 1) & 1) == 0) continue;
    raw_call(SYS_rt_sigaction, number, reinterpret_cast<long>(zero), 0, kKernelSigsetBytes);
  }
  return call(plan, Stage::kSignals, SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(zero),
              0, kKernelSigsetBytes);
}

}  // namespace

DDPRUN_IN_CHILD int run_child(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  if (plan == nullptr) raw_call(SYS_exit_group, 0);
  if (plan->noted) {
    __atomic_store_n(plan->noted, static_cast<int>(raw_call(SYS_getpid)), __ATOMIC_SEQ_CST);
  }
  if (call(plan, Stage::kSession, SYS_setsid) && arm_death_signal(plan) && set_up_streams(plan) &&
      bind(plan) && reset_limits(plan) && reset_signals(plan)) {
    call(plan, Stage::kExec, SYS_execve, reinterpret_cast<long>(plan->argv[0]),
         reinterpret_cast<long>(plan->argv), reinterpret_cast<long>(plan->environment));
  }
  raw_call(SYS_exit_group, kExitCannotStart);
  return kExitCannotStart;
}

}  // namespace ddprun::agent
