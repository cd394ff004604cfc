#include "launcher/guard/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/assert.h"
#include "common/system/descriptors.h"
#include "common/system/held_process.h"
#include "common/time.h"

namespace ddprun::launcher {

// Agents of --local-nodes, and the daemon: a process without a place here would outlive the
// launcher.
constexpr int kChildrenMax = 1024 + 8;

struct SharedPids {
  struct Process {
    std::atomic<int> pid;
    std::atomic<std::uint64_t> start;  // Differs from that of a later process with the same number.
  };
  std::array<Process, kChildrenMax> processes;
};

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr Milliseconds kAgentMoment = 40ms;  // An agent that lives needs less to clean up and end.
constexpr int kPauseMaxMs = 16;              // Between two scans of all processes.
constexpr Milliseconds kKillLimit = 2s;      // Longer only in uninterruptible sleep.

int kill_marked_once(const std::string& mark) {
  int killed = 0;
  for (const int pid : agent::numbered_entries("/proc")) {
    if (pid == ::getpid() || !agent::has_variable(pid, mark)) continue;
    const UniqueFd process = hold_process(pid);
    if (!process || !agent::has_variable(pid, mark))
      continue;  // The number may be another's by now.
    send_signal(process, SIGKILL);
    ++killed;
  }
  return killed;
}

// Whether its environment must not be read: a setuid program's.
bool is_hidden(int pid) {
  return ::access(("/proc/" + std::to_string(pid) + "/environ").c_str(), R_OK) != 0 ||
         agent::read_proc_file("/proc/" + std::to_string(pid) + "/environ").empty();
}

std::vector<agent::FamilyMember> all_processes() {
  std::vector<agent::FamilyMember> all;
  for (const int pid : agent::numbered_entries("/proc")) {
    const agent::ProcStat stat = agent::read_proc_stat(pid);
    const bool dead = stat.state == 'Z' || stat.state == 'X';
    if (stat.state == '?' || pid == ::getpid()) continue;  // The process has gone.
    all.push_back({pid, stat.parent, stat.group, stat.session, stat.started, dead});
  }
  return all;
}

// If /proc is mounted with hidepid, it does not list other users' processes, such as those of
// setuid programs. The kernel still reports whether they lead their sessions.
int kill_unlisted(const std::vector<agent::FamilyHead>& heads,
                  const std::vector<agent::FamilyMember>& all) {
  int killed = 0;
  for (const agent::FamilyHead& head : heads) {
    const bool listed = std::any_of(all.begin(), all.end(), [&](const agent::FamilyMember& member) {
      return member.pid == head.pid;
    });
    if (listed || head.reaped || ::getsid(head.pid) != head.pid) continue;
    killed += ::kill(-head.pid, SIGKILL) == 0 ? 1 : 0;
  }
  return killed;
}

int kill_families_once(const agent::WorkerRoster& workers) {
  const std::vector<agent::FamilyHead> heads = workers.heads();
  const std::vector<agent::FamilyMember> all = all_processes();
  int killed = kill_unlisted(heads, all);
  for (const agent::FamilyMember& member : agent::families_of(heads, all, is_hidden)) {
    const UniqueFd process = hold_process(member.pid);
    if (!process || agent::read_proc_stat(member.pid).started != member.started) continue;
    killed += send_signal(process, SIGKILL) ? 1 : 0;
  }
  return killed;
}

// A scan may miss a process that was forked behind it; the next one finds it.
int kill_until_none(const std::function<int()>& kill_once, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  int killed = 0, pause = 1;
  for (int found = 1; found > 0 && Clock::now() < until; killed += found) {
    found = kill_once();
    if (found > 0) ::poll(nullptr, 0, std::exchange(pause, std::min(2 * pause, kPauseMaxMs)));
  }
  return killed;
}

// Agents notice by themselves that the guardian is gone; stopped ones are killed.
void end_agents(const SharedPids& agents) {
  std::vector<UniqueFd> held;
  for (const auto& agent : agents.processes) {
    const int pid = agent.pid.load();
    if (pid == 0) continue;
    UniqueFd process = hold_process(pid);
    const bool same = process && agent::read_proc_stat(pid).started == agent.start.load();
    if (same) held.push_back(std::move(process));
  }
  const auto until = Clock::now() + kAgentMoment;
  for (const UniqueFd& process : held) {
    const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
    if (!ends_within(process, std::max(left, 0ms))) send_signal(process, SIGKILL);
  }
}

void clean_up(const KeeperTask& task, const SharedPids& agents) {
  if (!task.cgroup.empty()) agent::kill_cgroup(task.cgroup);
  if (task.workers) kill_families_once(*task.workers);
  kill_marked_once(task.mark);
  end_agents(agents);
  if (task.workers) kill_families(*task.workers, kKillLimit);
  if (!task.cgroup.empty())
    agent::kill_cgroup(task.cgroup);  // What a stopped agent's workers have started since.
  kill_marked(task.mark, kKillLimit);
  // A killed process leaves the cgroup only when it has really ended.
  const auto until = Clock::now() + kKillLimit;
  while (!agent::remove_cgroup(task.cgroup) && Clock::now() < until) ::poll(nullptr, 0, 2);
  for (const std::string& folder : task.folders) {
    std::error_code error;
    // The daemon, too, may still write as it dies.
    while (std::filesystem::remove_all(folder, error), error && Clock::now() < until) {
      ::poll(nullptr, 0, 2);
    }
  }
}

// A process in uninterruptible sleep ends when its disk answers.
void wait_until_empty(const std::string& cgroup) {
  const UniqueFd events(::open((cgroup + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  pollfd changed{events.get(), POLLPRI, 0};
  char text[256];
  for (bool populated = true; populated && events;) {
    const ssize_t n = ::pread(events.get(), text, sizeof text, 0);
    const std::string_view all(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    populated = all.find("populated 1") != std::string_view::npos;
    if (populated) ::poll(&changed, 1, -1);
  }
}

// Runs in the child. Holds none of the guardian's descriptors: readers of its output must see its
// end.
[[noreturn]] void keep(const KeeperTask& task, const SharedPids& agents, int guardian) {
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  close_from(0);
  for (int i = 0; i < 3; ++i) ::open("/dev/null", O_RDWR);
  const UniqueFd pidfd = open_pidfd(guardian);
  const int pause_ms = pidfd ? -1 : static_cast<int>(kLookAgain.count());
  pollfd ended{pidfd.get(), POLLIN, 0};
  while (::getppid() == guardian && ::poll(&ended, 1, pause_ms) < 1) {
  }
  clean_up(task, agents);
  if (!agent::remove_cgroup(task.cgroup)) {
    wait_until_empty(task.cgroup);
    agent::remove_cgroup(task.cgroup);
  }
  ::_exit(0);
}

// The child has its name from the beginning, even if it first runs late.
pid_t fork_named(const char* name) {
  char own[16] = {};
  ::prctl(PR_GET_NAME, own);
  ::prctl(PR_SET_NAME, name);
  const pid_t pid = ::fork();
  if (pid != 0) ::prctl(PR_SET_NAME, own);
  return pid;
}

}  // namespace

Result<Keeper> Keeper::start(const KeeperTask& task) {
  DDPRUN_ASSERT(!task.mark.empty());
  void* page = ::mmap(nullptr, sizeof(SharedPids), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno_failure("mapping a page for the keeper");
  Keeper keeper;
  keeper.agents_ = new (page) SharedPids{};
  const pid_t guardian = ::getpid();
  keeper.pid_ = fork_named("keeper");
  if (keeper.pid_ < 0) ::munmap(page, sizeof(SharedPids));
  if (keeper.pid_ < 0) return errno_failure("starting the keeper");
  if (keeper.pid_ == 0) keep(task, *keeper.agents_, guardian);
  return keeper;
}

void Keeper::child_started(int pid) {
  if (!agents_) return;
  for (auto& agent : agents_->processes) {
    if (agent.pid.load() != 0) continue;
    agent.start.store(agent::read_proc_stat(pid).started);
    return agent.pid.store(pid);
  }
  DDPRUN_ASSERT(!"the keeper has a place for each child");
}

void Keeper::child_ended(int pid) {
  if (!agents_) return;
  for (auto& agent : agents_->processes) {
    if (agent.pid.load() == pid) agent.pid.store(0);
  }
}

void Keeper::dismiss() {
  if (pid_ != 0) ::kill(pid_, SIGKILL);
}

void Keeper::wait() {
  if (pid_ == 0) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  ::munmap(std::exchange(agents_, nullptr), sizeof(SharedPids));
}

int kill_marked(const std::string& mark, std::chrono::milliseconds limit) {
  return kill_until_none([&] { return kill_marked_once(mark); }, limit);
}

int kill_families(const agent::WorkerRoster& workers, std::chrono::milliseconds limit) {
  return kill_until_none([&] { return kill_families_once(workers); }, limit);
}

}  // namespace ddprun::launcher
