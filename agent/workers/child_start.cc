#include "agent/workers/child_start.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

#include "agent/process/proc_file.h"
#include "agent/process/roster.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/held_process.h"
#include "common/system/signals.h"
#include "common/text/display.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kFirstBytes = 256;  // What the kernel reads, execve(2).

std::string first_bytes(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(kFirstBytes, '\0');
  const ssize_t got = file ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

std::string of_interpreter(std::string_view line) {
  const bool carriage_return = line.ends_with('\r');
  if (carriage_return) line.remove_suffix(1);
  line.remove_prefix(std::min(line.find_first_not_of(" \t", 2), line.size()));
  const std::string name = without_escapes(line.substr(0, line.find_first_of(" \t")));
  if (carriage_return) {
    return " (its lines end with CR LF, as on Windows, so the kernel looks for an interpreter '" +
           name + "\\r': save it with LF)";
  }
  return " (the interpreter " + name + " that its first line names is not there)";
}

// ENOEXEC. The kernel takes no part of a #! line for an interpreter's name.
std::string of_content(const std::string& bytes) {
  const bool whole = bytes.size() < kFirstBytes || bytes.find('\n') != std::string::npos;
  if (!bytes.starts_with("#!")) return " (neither a binary nor a script with a #! line)";
  if (whole) return " (its #! line names no interpreter)";
  return " (its #! line is longer than the " + std::to_string(kFirstBytes - 1) +
         " characters that the kernel reads: shorten the interpreter's path, by a link to it or "
         "by `#!/usr/bin/env python3`; a Python script can be named .py)";
}

}  // namespace

std::string exec_hint(const std::string& path, int error) {
  if (error != ENOEXEC && error != ENOENT) return "";
  const std::string bytes = first_bytes(path);
  if (error == ENOEXEC) return of_content(bytes);
  const std::string_view line = std::string_view(bytes).substr(0, bytes.find('\n'));
  if (line.starts_with("#!")) return of_interpreter(line);
  if (line.starts_with("\177ELF")) {
    return " (the dynamic loader that it names is not there: it was built for another system)";
  }
  return "";
}

namespace {

constexpr int kSignalMax = 64;
constexpr std::size_t kKernelSigsetBytes = 8;
constexpr unsigned kDescriptorGuess = 65536;  // How far to close if the kernel has no close_range.

DDPRUN_IN_CHILD bool fail(ChildPlan* plan, Stage stage, long error) {
  plan->error = static_cast<int>(error);
  plan->failed = stage;
  // Before the kernel notifies the parent that we have left its memory.
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
  if (!plan->keeps_stdin) {
    const long null = plan->slots && plan->null_fd >= 0 ? plan->null_fd : open_null();
    if (null < 0) return fail(plan, Stage::kStreams, -null);
    if (null != 0 && !call(plan, Stage::kStreams, SYS_dup3, null, 0, 0)) return false;
  }
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
  // The kernel clears it, and wakes its waiter, once the child has another memory or none.
  int occupied = 1;

  void wait_empty() {
    while (__atomic_load_n(&occupied, __ATOMIC_ACQUIRE) != 0) {
      ::syscall(SYS_futex, &occupied, FUTEX_WAIT, 1, nullptr, nullptr, 0);
    }
  }
};

// We go on beside the child, which lives in our memory for as long as the room is occupied.
constexpr int kCloneFlags = CLONE_VM | CLONE_CHILD_CLEARTID | (kHasRawCalls ? 0 : CLONE_VFORK);

// With slots it shares our table of descriptors, too, until it has taken what it needs.
int flags_for(const ChildPlan* plan) {
  return kCloneFlags | (plan && plan->slots ? CLONE_FILES : 0);
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

// `pidfd` is -1 if the kernel cannot make one along with the process. Below 0: -errno.
pid_t clone_child(ChildPlan& plan, ChildRoom& room, int cgroup_fd, int& pidfd) {
  const SignalsHeld held;  // A handler of ours must not run in the child, in our memory.
  if (cgroup_fd >= 0) {
    const pid_t pid = clone_into_cgroup(&plan, room, cgroup_fd, pidfd);
    if (pid > 0) return pid;  // Else without: an old kernel, or the folder is gone.
  }
  char* const top = room.stack + sizeof room.stack;
  const int flags = flags_for(&plan) | SIGCHLD;
  if (has_pidfds()) {
    const pid_t pid =
        ::__clone(run_child, top, flags | CLONE_PIDFD, &plan, &pidfd, nullptr, &room.occupied);
    if (pid >= 0 || errno != EINVAL) return pid >= 0 ? pid : -errno;
  }
  pidfd = -1;
  const pid_t pid = ::__clone(run_child, top, flags, &plan, nullptr, nullptr, &room.occupied);
  return pid >= 0 ? pid : -errno;
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

// Must not move: the child reads it at this address.
struct ChildStart::Child {
  Child(WorkerSpec given, WorkerEnds given_ends, const StartBatch& round, std::size_t place)
      : spec(std::move(given)), ends(std::move(given_ends)) {
    if (ends.stdout_end) spec.stdout_fd = ends.stdout_end.get();
    if (ends.stderr_end) spec.stderr_fd = ends.stderr_end.get();
    if (ends.link_end) spec.link_fd = ends.link_end.get();
    plan.stdout_fd = spec.stdout_fd;
    plan.stderr_fd = spec.stderr_fd;
    plan.link_fd = spec.link_fd;
    plan.keeps_stdin = spec.keeps_stdin;
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
    return Failure{{error, std::system_category()}, what_failed(spec, stage, error)};
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

ChildStart::ChildStart(WorkerSpec spec, WorkerEnds ends, const StartBatch& round, std::size_t place)
    : child_(std::make_unique<Child>(std::move(spec), std::move(ends), round, place)) {
  DDPRUN_ASSERT(!child_->spec.argv.empty());
  Child& child = *child_;
  const std::uint64_t before = ticks_since_boot();
  child.pid = clone_child(child.plan, child.room, child.spec.cgroup_fd, child.pidfd);
  if (child.pid > 0)
    WorkerRoster::note_start(child.spec.roster_place, {before, ticks_since_boot()});
}

ChildStart::~ChildStart() {
  if (child_ && child_->pid > 0) child_->room.wait_empty();
}

Result<SpawnedProcess> ChildStart::finish() {
  Child& child = *child_;
  if (child.pid < 0) return child.failure(Stage::kNone, -child.pid);
  child.room.wait_empty();
  UniqueFd owned(child.pidfd);
  if (child.plan.failed != Stage::kNone) {
    reap(child.pid);
    return child.failure(child.plan.failed, child.plan.error);
  }
  if (!owned) owned = open_pidfd(child.pid);
  if (!owned && has_pidfds()) {
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

bool can_start_in(int cgroup_fd) {
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

namespace {

// With what it has forked into its group meanwhile.
void kill_and_reap(int pid) {
  ::kill(-pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

constexpr std::size_t kAtOnceMax = 4;  // So many processors they keep busy.

}  // namespace

Spawner::Spawner() : slots_(kAtOnceMax), round_{.slots = &slots_} {}

bool Spawner::add(WorkerSpec spec, WorkerEnds ends) {
  if (begun_ == 0) round_.ignored_signals = ignored_signals();
  if (starts_.size() == kAtOnceMax) finish_first();
  const int newest = std::max(ends.stdout_end.get(), ends.link_end.get());
  if (!slots_.has_room_after(newest)) {
    finish_all();
    slots_.make_room_after(newest);
  }
  if (failed_) return false;
  starts_.emplace_back(std::move(spec), std::move(ends), round_, begun_++);
  return true;
}

std::vector<Result<SpawnedProcess>> Spawner::finish() {
  finish_all();
  slots_.clear();
  begun_ = 0;
  failed_ = false;
  return std::exchange(started_, {});
}

Result<SpawnedProcess> Spawner::spawn(WorkerSpec spec) {
  DDPRUN_ASSERT(starts_.empty() && started_.empty());
  add(std::move(spec), {});
  return std::move(finish().front());
}

void Spawner::finish_all() {
  while (!starts_.empty()) finish_first();
}

void Spawner::finish_first() {
  DDPRUN_ASSERT(!starts_.empty() && starts_.size() <= kAtOnceMax);
  Result<SpawnedProcess> process = starts_.front().finish();
  starts_.pop_front();
  if (failed_) {  // It was begun before that was known.
    if (process) kill_and_reap(process->pid);
    return;
  }
  failed_ = process.has_error();
  started_.push_back(std::move(process));
}

}  // namespace ddprun::agent
