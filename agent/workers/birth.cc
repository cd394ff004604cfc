#include "agent/workers/birth.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "agent/process/proc_file.h"
#include "agent/process/roster.h"
#include "agent/workers/exec_hint.h"
#include "agent/workers/newborn.h"
#include "common/assert.h"
#include "common/system/child.h"
#include "common/system/signals.h"

// The C library's second name for clone(). ThreadSanitizer wraps the first and counts the child's
// start as its own, in memory that is ours: afterwards it would deliver no signal any more.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument,
                       ...) noexcept;

namespace ddprun::agent {
namespace {

constexpr std::size_t kChildStackBytes = std::size_t{16} * 1024;

std::vector<const char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(string.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

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

// Our own hard limit, and `soft` below it.
void set_soft(__rlimit_resource resource, std::uint64_t soft, rlimit& limit) {
  ::getrlimit(resource, &limit);
  limit.rlim_cur = std::min<rlim_t>(soft == kUnlimited ? RLIM_INFINITY : soft, limit.rlim_max);
}

// Which of what execve copies is too big: a single string, or all of them.
std::string size_hint(const WorkerSpec& spec) {
  const auto bytes_of = [](const std::vector<std::string>& strings) {
    std::size_t bytes = 0;
    for (const std::string& string : strings) bytes += string.size() + 1 + sizeof(char*);
    return bytes;
  };
  const auto shorter = [](const std::string& a, const std::string& b) {
    return a.size() < b.size();
  };
  const std::size_t environment = bytes_of(spec.environment);
  std::string text = " (the environment has " + std::to_string(environment) +
                     " bytes, the arguments " + std::to_string(bytes_of(spec.argv));
  const auto longest = std::max_element(spec.environment.begin(), spec.environment.end(), shorter);
  if (longest != spec.environment.end()) {
    text += "; the longest variable is " + longest->substr(0, longest->find('=')) + " with " +
            std::to_string(longest->size());
  }
  return text + "; the kernel takes a quarter of ulimit -s for all, and 131,071 for one)";
}

std::string what_failed(const WorkerSpec& spec, Stage stage, int error) {
  const std::string start = "starting local rank " + std::to_string(spec.local_rank) + ": ";
  switch (stage) {
    case Stage::kSession: return start + "setsid";
    case Stage::kDeathSignal: return start + "prctl(PR_SET_PDEATHSIG)";
    case Stage::kParentGone: return start + "the agent ended";
    case Stage::kStreams:
      if (::access("/dev/null", R_OK) == 0) return start + "standard streams";
      return start + "/dev/null, which is to be its standard input, cannot be opened (is /dev " +
             "mounted? mknod -m 666 /dev/null c 1 3)";
    case Stage::kProcessors: return start + "binding to processors";
    case Stage::kSignals: return start + "signal mask";
    case Stage::kExec: break;
    case Stage::kNone: return start + "clone";
  }
  if (error == E2BIG) return start + "execve " + spec.argv.front() + size_hint(spec);
  return start + "execve " + spec.argv.front() + exec_hint(spec.argv.front(), error);
}

// What the child runs on, and how we learn that it has left it.
struct ChildRoom {
  alignas(64) char stack[kChildStackBytes];
  // The kernel clears it, and wakes who waits for that, once the child has another memory or none.
  int occupied = 1;

  void wait_empty() {
    while (__atomic_load_n(&occupied, __ATOMIC_ACQUIRE) != 0) {
      ::syscall(SYS_futex, &occupied, FUTEX_WAIT, 1, nullptr, nullptr, 0);
    }
  }
};

// We go on beside the child, which lives in our memory for as long as the room is occupied.
constexpr int kBirthFlags = CLONE_VM | CLONE_CHILD_CLEARTID | (kHasRawCalls ? 0 : CLONE_VFORK);

// With slots it shares our table of descriptors, too, until it has taken what it needs.
int flags_for(const ChildPlan* plan) {
  return kBirthFlags | (plan && plan->slots ? CLONE_FILES : 0);
}

// Born in its cgroup: to be moved there afterwards would take milliseconds, and leave a moment in
// which it could fork outside. Without a plan it ends at once. Below 0: -errno.
pid_t clone_into_cgroup(ChildPlan* plan, ChildRoom& room, int cgroup_fd, int& pidfd) {
  clone_args how{};
  how.flags = static_cast<unsigned>(flags_for(plan)) | CLONE_PIDFD | CLONE_INTO_CGROUP;
  how.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  how.child_tid = reinterpret_cast<std::uintptr_t>(&room.occupied);
  how.stack = reinterpret_cast<std::uintptr_t>(room.stack);
  how.stack_size = sizeof room.stack;
  how.exit_signal = SIGCHLD;
  how.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  return static_cast<pid_t>(clone3_and_run(how, run_child, plan));
}

// `pidfd` is -1 where the kernel cannot make one along with the process. Below 0: -errno.
pid_t clone_child(ChildPlan& plan, ChildRoom& room, int cgroup_fd, int& pidfd) {
  const SignalsHeld held;  // A handler of ours must not run in the child, in our memory.
  if (cgroup_fd >= 0) {
    const pid_t pid = clone_into_cgroup(&plan, room, cgroup_fd, pidfd);
    if (pid > 0) return pid;  // Else without: an old kernel, or the folder is gone.
  }
  char* const top = room.stack + sizeof room.stack;
  const int flags = flags_for(&plan) | SIGCHLD;
  pid_t pid =
      ::__clone(run_child, top, flags | CLONE_PIDFD, &plan, &pidfd, nullptr, &room.occupied);
  if (pid >= 0 || errno != EINVAL) return pid >= 0 ? pid : -errno;
  pidfd = -1;
  pid = ::__clone(run_child, top, flags, &plan, nullptr, nullptr, &room.occupied);
  return pid >= 0 ? pid : -errno;
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

// Where it is the child looks for it, so it stays there.
struct Birth::Child {
  Child(WorkerSpec given, WorkerEnds given_ends, const BirthRound& round, std::size_t place)
      : spec(std::move(given)), ends(std::move(given_ends)) {
    if (ends.stdout_end) spec.stdout_fd = ends.stdout_end.get();
    if (ends.stderr_end) spec.stderr_fd = ends.stderr_end.get();
    if (ends.link_end) spec.link_fd = ends.link_end.get();
    plan.stdout_fd = spec.stdout_fd;
    plan.stderr_fd = spec.stderr_fd;
    plan.link_fd = spec.link_fd;
    plan.ignored_signals = round.ignored_signals;
    if (const auto* const slots = round.slots ? round.slots->of_child(place) : nullptr) {
      plan.slots = slots->data();
      plan.null_fd = round.slots->null();
      plan.table_end = round.slots->table_end();
    }
    if (spec.limits) {
      set_soft(RLIMIT_NOFILE, spec.limits->descriptors, descriptors);
      set_soft(RLIMIT_NPROC, spec.limits->processes, processes_limit);
      plan.descriptors = &descriptors;
      plan.processes = &processes_limit;
    }
    static_assert(sizeof(std::atomic<int>) == sizeof(int));  // So the child may write it plainly.
    if (spec.roster_place) plan.noted = reinterpret_cast<int*>(&spec.roster_place->pid);
  }

  Result<SpawnedProcess> failure(Stage stage, int error) const {
    WorkerRoster::release(spec.roster_place);
    return Failure{{error, boost::system::system_category()}, what_failed(spec, stage, error)};
  }

  ChildRoom room;
  WorkerSpec spec;
  WorkerEnds ends;
  const std::vector<const char*> argv = c_strings(spec.argv);
  const std::vector<const char*> environment = c_strings(spec.environment);
  const ProcessorSet processors{spec.processors};
  ChildPlan plan{argv.data(),      environment.data(), -1, -1, ::getpid(),
                 processors.get(), processors.bytes()};
  rlimit descriptors{}, processes_limit{};
  int pidfd = -1;
  pid_t pid = 0;
};

Birth::Birth(WorkerSpec spec, WorkerEnds ends, const BirthRound& round, std::size_t place)
    : child_(std::make_unique<Child>(std::move(spec), std::move(ends), round, place)) {
  DDPRUN_ASSERT(!child_->spec.argv.empty());
  Child& child = *child_;
  const std::uint64_t before = ticks_since_boot();
  child.pid = clone_child(child.plan, child.room, child.spec.cgroup_fd, child.pidfd);
  if (child.pid > 0) WorkerRoster::born(child.spec.roster_place, {before, ticks_since_boot()});
}

Birth::~Birth() {
  if (child_ && child_->pid > 0) child_->room.wait_empty();
}

Result<SpawnedProcess> Birth::finish() {
  Child& child = *child_;
  if (child.pid < 0) return child.failure(Stage::kNone, -child.pid);
  child.room.wait_empty();
  UniqueFd owned(child.pidfd);
  if (child.plan.failed != Stage::kNone) {
    reap(child.pid);
    return child.failure(child.plan.failed, child.plan.error);
  }
  if (!owned) owned = open_pidfd(child.pid);
  if (!owned) {
    const int error = errno;
    ::kill(child.pid, SIGKILL);
    reap(child.pid);
    return child.failure(Stage::kNone, error);
  }
  return SpawnedProcess{child.pid, std::move(owned)};
}

std::uint64_t ignored_signals() {
  std::uint64_t ignored = 0;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    const bool known = ::sigaction(number, nullptr, &action) == 0;
    if (known && action.sa_handler == SIG_IGN) ignored |= std::uint64_t{1} << (number - 1);
  }
  return ignored;
}

bool can_be_born_in(int cgroup_fd) {
  int pidfd = -1, status = -1;
  const auto room = std::make_unique<ChildRoom>();
  const pid_t pid = [&] {
    const SignalsHeld held;
    return clone_into_cgroup(nullptr, *room, cgroup_fd, pidfd);
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
