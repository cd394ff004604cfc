#include "agent/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "common/assert.h"

// The child runs in our memory: sanitizers would take what it does for our own doing.
#define DDPRUN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

// The C library's second name for clone(). ThreadSanitizer wraps the first and counts the child's
// start as its own, in memory that is ours: afterwards it would deliver no signal any more.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument,
                       ...) noexcept;

namespace ddprun::agent {
namespace {

enum class Stage {
  kNone,         // Nothing failed.
  kSession,      // A session and process group of its own.
  kDeathSignal,  // PR_SET_PDEATHSIG.
  kParentGone,   // We ended before the death signal was armed.
  kStreams,      // Descriptors 0, 1 and 2.
  kProcessors,   // sched_setaffinity.
  kSignals,      // Default dispositions and mask.
  kExec,         // execve itself.
};

// What the parent tells the child, and what the child leaves behind. Lives on the parent's stack,
// which stays put because the parent is suspended until the child has executed or ended.
struct ChildPlan {
  const char* const* argv;
  const char* const* environment;
  int stdout_fd;
  int stderr_fd;
  pid_t parent;
  const cpu_set_t* processors;  // Null: all of the parent's.
  std::size_t processors_bytes;
  volatile Stage failed = Stage::kNone;
  volatile int error = 0;
};

constexpr int kSignalMax = 64;
constexpr std::size_t kKernelSigsetBytes = 8;
constexpr std::size_t kChildStackBytes = std::size_t{16} * 1024;
constexpr unsigned kDescriptorGuess = 65536;  // To close where the kernel has no close_range.

// System calls are made directly: wrappers may be sanitizers' interceptors.
DDPRUN_IN_CHILD bool call(ChildPlan* plan, Stage stage, long number, long a = 0, long b = 0,
                          long c = 0, long d = 0) {
  if (::syscall(number, a, b, c, d) >= 0) return true;
  plan->error = errno;
  plan->failed = stage;
  return false;
}

DDPRUN_IN_CHILD bool arm_death_signal(ChildPlan* plan) {
  if (!call(plan, Stage::kDeathSignal, SYS_prctl, PR_SET_PDEATHSIG, SIGKILL)) return false;
  if (::syscall(SYS_getppid) == plan->parent) return true;
  plan->error = ESRCH;
  plan->failed = Stage::kParentGone;
  return false;
}

// Descriptors are first moved out of the way of 0, 1 and 2, so that any of them may be given as
// any.
DDPRUN_IN_CHILD bool set_up_streams(ChildPlan* plan) {
  const int given[] = {plan->stdout_fd, plan->stderr_fd};
  long moved[] = {-1, -1};
  for (int i = 0; i < 2; ++i) {
    if (given[i] < 0) continue;
    moved[i] = ::syscall(SYS_fcntl, given[i], F_DUPFD, 3);
    if (moved[i] < 0) return call(plan, Stage::kStreams, SYS_fcntl, given[i], F_DUPFD, 3);
  }
  for (int i = 0; i < 2; ++i) {
    if (moved[i] >= 0 && !call(plan, Stage::kStreams, SYS_dup3, moved[i], 1 + i, 0)) return false;
  }
  const long null = ::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0);
  if (null < 0) return call(plan, Stage::kStreams, SYS_openat, AT_FDCWD, 0, 0, 0);
  if (null != 0 && !call(plan, Stage::kStreams, SYS_dup3, null, 0, 0)) return false;
  if (::syscall(SYS_close_range, 3U, ~0U, 0U) < 0) {
    for (unsigned fd = 3; fd < kDescriptorGuess; ++fd) ::syscall(SYS_close, fd);
  }
  return true;
}

DDPRUN_IN_CHILD bool bind(ChildPlan* plan) {
  return plan->processors == nullptr ||
         call(plan, Stage::kProcessors, SYS_sched_setaffinity, 0,
              static_cast<long>(plan->processors_bytes), reinterpret_cast<long>(plan->processors));
}

DDPRUN_IN_CHILD bool reset_signals(ChildPlan* plan) {
  const unsigned long zero[8] = {};  // A kernel sigaction of SIG_DFL, and an empty kernel sigset.
  for (int number = 1; number <= kSignalMax; ++number) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    ::syscall(SYS_rt_sigaction, number, zero, nullptr, kKernelSigsetBytes);
  }
  return call(plan, Stage::kSignals, SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(zero),
              0, kKernelSigsetBytes);
}

DDPRUN_IN_CHILD int run_child(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  if (call(plan, Stage::kSession, SYS_setsid) && arm_death_signal(plan) && set_up_streams(plan) &&
      bind(plan) && reset_signals(plan)) {
    call(plan, Stage::kExec, SYS_execve, reinterpret_cast<long>(plan->argv[0]),
         reinterpret_cast<long>(plan->argv), reinterpret_cast<long>(plan->environment));
  }
  ::syscall(SYS_exit_group, 127);
  return 127;
}

std::vector<const char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(string.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

// A handler of ours must not run in the child, which shares our memory.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

// The kernel's form of a list of processors.
class ProcessorSet {
 public:
  explicit ProcessorSet(const std::vector<int>& processors) {
    if (processors.empty()) return;
    const int highest = *std::max_element(processors.begin(), processors.end());
    words_.resize(CPU_ALLOC_SIZE(highest + 1) / sizeof(unsigned long));
    constexpr int kBits = 8 * sizeof(unsigned long);
    for (const int cpu : processors) words_[cpu / kBits] |= 1UL << (cpu % kBits);
  }
  const cpu_set_t* get() const {
    return words_.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(words_.data());
  }
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

std::string what_failed(const WorkerSpec& spec, Stage stage, int error) {
  const std::string start = "starting local rank " + std::to_string(spec.local_rank) + ": ";
  switch (stage) {
    case Stage::kSession: return start + "setsid";
    case Stage::kDeathSignal: return start + "prctl(PR_SET_PDEATHSIG)";
    case Stage::kParentGone: return start + "the agent ended";
    case Stage::kStreams: return start + "standard streams";
    case Stage::kProcessors: return start + "binding to processors";
    case Stage::kSignals: return start + "signal mask";
    case Stage::kExec: break;
    case Stage::kNone: return start + "clone";
  }
  const std::string hint =
      error == ENOEXEC ? " (neither a binary nor a script with a #! line)" : "";
  return start + "execve " + spec.argv.front() + hint;
}

// clone3 with the caller's own stack, as vfork does it, because the C library has no clone3 for
// programs. The child must not return into this frame: it runs below it until it is another
// program.
[[gnu::noinline]] DDPRUN_IN_CHILD long clone3_and_run(const clone_args* how, ChildPlan* plan) {
#if defined(__x86_64__)
  long outcome;
  asm volatile("syscall"
               : "=a"(outcome)
               : "0"(static_cast<long>(SYS_clone3)), "D"(how), "S"(sizeof *how)
               : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  // cppcheck-suppress constStatement  // It does not know variables in registers.
  register long outcome asm("x0") = reinterpret_cast<long>(how);
  register long size asm("x1") = sizeof *how;
  register long number asm("x8") = SYS_clone3;
  asm volatile("svc #0" : "+r"(outcome) : "r"(size), "r"(number) : "memory");
#else
  static_cast<void>(how);
  long outcome = -ENOSYS;
#endif
  if (outcome == 0) {
    if (plan) run_child(plan);
    ::syscall(SYS_exit_group, 0);
  }
  return outcome;
}

// Born in its cgroup: to be moved there afterwards would take milliseconds, and leave a moment in
// which it could fork outside.
// Without a plan it ends at once.
pid_t clone_into_cgroup(ChildPlan* plan, int cgroup_fd, int& pidfd) {
  clone_args how{};
  how.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_INTO_CGROUP;
  how.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  how.exit_signal = SIGCHLD;
  how.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  return static_cast<pid_t>(clone3_and_run(&how, plan));
}

// Borrows our memory and suspends us until the child has executed or ended. `pidfd` is -1 where the
// kernel cannot make one along with the process.
pid_t clone_child(ChildPlan& plan, int cgroup_fd, int& pidfd) {
  if (cgroup_fd >= 0) {
    const pid_t pid = clone_into_cgroup(&plan, cgroup_fd, pidfd);
    if (pid > 0) return pid;  // Else without: an old kernel, or the folder is gone.
  }
  alignas(64) char stack[kChildStackBytes];
  const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  const pid_t pid = ::__clone(run_child, stack + sizeof stack, flags | CLONE_PIDFD, &plan, &pidfd);
  if (pid >= 0 || errno != EINVAL) return pid;
  pidfd = -1;
  return ::__clone(run_child, stack + sizeof stack, flags, &plan);
}

}  // namespace

Result<SpawnedProcess> spawn_process(const WorkerSpec& spec) {
  DDPRUN_ASSERT(!spec.argv.empty());
  const std::vector<const char*> argv = c_strings(spec.argv);
  const std::vector<const char*> environment = c_strings(spec.environment);
  const ProcessorSet processors(spec.processors);
  ChildPlan plan{argv.data(), environment.data(), spec.stdout_fd,    spec.stderr_fd,
                 ::getpid(),  processors.get(),   processors.bytes()};

  int pidfd = -1, clone_error = 0;
  const pid_t pid = [&] {
    const SignalsHeld held;
    const pid_t child = clone_child(plan, spec.cgroup_fd, pidfd);
    clone_error = errno;
    return child;
  }();

  const auto failure = [&](Stage stage, int error) {
    return Failure{{error, boost::system::system_category()}, what_failed(spec, stage, error)};
  };
  if (pid < 0) return failure(Stage::kNone, clone_error);
  UniqueFd owned(pidfd);
  if (plan.failed != Stage::kNone) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return failure(plan.failed, plan.error);
  }
  if (!owned) owned.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!owned) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return failure(Stage::kNone, error);
  }
  return SpawnedProcess{pid, std::move(owned)};
}

bool can_be_born_in(int cgroup_fd) {
  int pidfd = -1, status = -1;
  const pid_t pid = [&] {
    const SignalsHeld held;
    return clone_into_cgroup(nullptr, cgroup_fd, pidfd);
  }();
  const UniqueFd owned(pidfd);
  if (pid <= 0) return false;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> environment;
  for (char** entry = ::environ; entry && *entry; ++entry) environment.emplace_back(*entry);
  return environment;
}

}  // namespace ddprun::agent
