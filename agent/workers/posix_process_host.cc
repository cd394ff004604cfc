#include "agent/workers/posix_process_host.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "agent/process/cgroup.h"
#include "agent/process/family.h"
#include "agent/process/proc_file.h"
#include "agent/process/roster.h"
#include "agent/workers/child_start.h"
#include "common/assert.h"
#include "common/exit_status.h"
#include "common/system/child_process.h"
#include "common/system/log.h"

namespace ddprun::agent {
namespace {

using boost::asio::posix::stream_descriptor;

// The agent reports a failed worker once its family is gone, or after this; it takes a few
// milliseconds. One check is not enough: children of killed processes come to us meanwhile.
constexpr std::chrono::milliseconds kFamilyLimit{500};

WorkerDeath death_of(int local_rank, const siginfo_t& info) {
  const bool exited = info.si_code == CLD_EXITED;
  return {.local_rank = local_rank,
          .pid = info.si_pid,
          .exit_code = exited ? info.si_status : 0,
          .signal = exited ? 0 : info.si_status};
}

// The worker `leader`, what descends from it in its group, and what of that has lost its parent and
// is a child of this process.
std::vector<GroupMember> group_of(int leader, int signal) {
  std::vector<GroupMember> group;
  std::vector<std::pair<int, int>> found = {{leader, ::getpid()}};  // Process, parent.
  const auto add_children = [&found](int parent) {
    for (const int child : children_of(parent)) found.emplace_back(child, parent);
  };
  add_children(::getpid());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [pid, parent] = found[i];
    const bool again = i > 0 && pid == leader;
    if (again || ::getpgid(pid) != leader) continue;
    group.push_back({pid, parent, read_proc_file("/proc/" + std::to_string(pid) + "/cmdline"),
                     handles_signal(pid, signal)});
    add_children(pid);
  }
  return group;
}

// A worker leads its group, and is not reaped yet: the number is still its own.
void signal_group(int leader, int signal) {
  const bool whole = signal == SIGKILL || signal == SIGSTOP || signal == SIGCONT;
  if (whole) return (void)::kill(-leader, signal);
  for (const int pid : signal_receivers(leader, group_of(leader, signal))) ::kill(pid, signal);
}

}  // namespace

PosixProcessHost::PosixProcessHost(boost::asio::io_context& loop)
    : loop_(loop), child_signals_(loop, SIGCHLD), fork_server_(loop) {
  if (const auto reaper = become_sub_reaper(); !reaper) log::debug(to_string(reaper.error()));
  watch_orphans();
}

PosixProcessHost::~PosixProcessHost() {
  kill_everything();
  remove_cgroup(workers_cgroup_);
  remove_cgroup(cgroup_);
}

Result<void> PosixProcessHost::use_cgroup(const std::string& job) {
  auto made = make_cgroup(job, agent_cgroup_name(::getpid()));
  if (!made) return made.error();
  cgroup_ = *made;
  return renew_cgroup();
}

// For each round: a cgroup that has been killed, by us or by an operator, cannot be used again, see
// can_start_in().
Result<void> PosixProcessHost::renew_cgroup() {
  remove_cgroup(workers_cgroup_);
  cgroup_fd_.reset();
  auto made = make_cgroup(cgroup_, std::to_string(cgroups_made_++));
  if (!made) return made.error();
  workers_cgroup_ = *made;
  auto opened = open_cgroup(workers_cgroup_);
  if (!opened) return opened.error();
  if (!can_start_in(opened->get())) {
    return Failure{Errc::kBadOption, "no process can be born in the cgroup " + workers_cgroup_};
  }
  cgroup_fd_ = std::move(*opened);
  return {};
}

// Everything that workers left, however fast it forks.
void PosixProcessHost::kill_cgroup_strays() {
  if (cgroup_fd_) kill_cgroup(workers_cgroup_);
}

// What a dead worker has detached is our child, beside what living ones have: only its environment
// shows its worker. A process that is about to end may still hold a port, but has no environment
// any more; to wait for a stranger of that kind costs little.
StrayReport PosixProcessHost::kill_family(int local_rank, std::chrono::milliseconds limit) {
  const auto family = families_.find(local_rank);
  if (family == families_.end()) return {};
  const auto is_other = [&](int pid) {
    return is_ours(pid) || !(read_proc_stat(pid).exiting || has_variable(pid, family->second));
  };
  return kill_unknown_children(is_other, limit);
}

// The worker must not find the port, the memory or the files of its predecessor taken.
void PosixProcessHost::replace_family(WorkerSpec& spec) {
  for (const std::string& process : kill_family(spec.local_rank, kStrayLimit).stuck) {
    log::warning("a process left by the last worker of local rank " +
                 std::to_string(spec.local_rank) + " survives SIGKILL: " + process);
  }
  std::string& family = families_[spec.local_rank];
  family = std::string(kWorkerVariable) + "=" + std::to_string(::getpid()) + "." +
           std::to_string(workers_made_++);
  spec.environment.push_back(family);
}

// With the cgroup to be born in; a new one if a round has used the last. If workers replace others,
// all may have died without an end of the round.
WorkerSpec PosixProcessHost::placed(WorkerSpec spec) {
  if (workers_.empty() && soon_.empty() && !strays_killed_) kill_strays();
  strays_killed_ = false;
  if (workers_.empty() && soon_.empty() && std::exchange(cgroup_used_, true) && !cgroup_.empty()) {
    if (const auto renewed = renew_cgroup(); !renewed) log::debug(to_string(renewed.error()));
  }
  replace_family(spec);
  spec.cgroup_fd = cgroup_fd_.get();
  if (roster_) spec.roster_place = roster_->claim();
  return spec;
}

int PosixProcessHost::watch(int local_rank, SpawnedProcess process) {
  DDPRUN_ASSERT(process.pid > 0 && !workers_.contains(process.pid));
  stream_descriptor exit(loop_);
  if (process.pidfd) exit.assign(process.pidfd.release());
  workers_.emplace(process.pid, Worker{.local_rank = local_rank, .exit = std::move(exit)});
  watch_exit(process.pid);
  return process.pid;
}

Result<int> PosixProcessHost::spawn(const WorkerSpec& spec) {
  Result<SpawnedProcess> process = spawner_.spawn(placed(spec));
  if (process.has_error()) return process.error();
  return watch(spec.local_rank, std::move(*process));
}

Result<void> PosixProcessHost::preload(WorkerSpec spec, const std::string& modules,
                                       std::function<void()> settled, const KeepOrder& keep) {
  const auto ends = fork_server_.prepare(spec, modules, keep);  // Ends the one before.
  preloads_ = true;
  if (!ends) return ends.error();
  spec.stdout_fd = ends->stdout_end.get();
  spec.stderr_fd = ends->stderr_end.get();
  spec.link_fd = ends->link_end.get();
  // Beside that of the workers, which is killed with each round of them.
  (void)make_cgroup(cgroup_, "preload");  // It may be there.
  const auto cgroup =
      cgroup_.empty() ? Result<UniqueFd>(UniqueFd()) : open_cgroup(cgroup_ + "/preload");
  if (cgroup) spec.cgroup_fd = cgroup->get();
  if (roster_) spec.roster_place = roster_->claim();
  auto process = spawner_.spawn(spec);
  if (!process) return process.error();
  spare(process->pid);
  fork_server_.on_settled = std::move(settled);
  fork_server_.on_unfit = on_unfit;
  fork_server_.on_absent = on_absent;
  fork_server_.on_reaped = [this](int pid) {
    spared_.erase(pid);
    if (roster_) roster_->reaped(pid);
  };
  fork_server_.started(spec, process->pid);
  return {};
}

// None: it is started cold.
std::optional<SpawnedProcess> PosixProcessHost::forked(const WorkerSpec& spec,
                                                       const WorkerEnds& ends) {
  if (!preloads_) return std::nullopt;
  auto process = fork_server_.fork(spec, ends);
  const auto is_soon = [&](const Soon& other) {
    return process && other.forked && other.forked->pid == process->pid;
  };
  const bool is_new = process && !is_ours(process->pid) && std::ranges::none_of(soon_, is_soon);
  if (is_new) return std::move(*process);
  const std::string why =
      process ? "the fork server has sent another worker's process" : process.error().context;
  if (process) fork_server_.end(why);
  if (on_cold) on_cold(spec.local_rank, why);
  return std::nullopt;
}

bool PosixProcessHost::spawn_soon(WorkerSpec spec, WorkerEnds ends) {
  WorkerSpec with_cgroup = placed(std::move(spec));
  soon_.push_back({with_cgroup.local_rank, forked(with_cgroup, ends)});
  return soon_.back().forked || spawner_.add(std::move(with_cgroup), std::move(ends));
}

// Ends a fork that is not used because another worker could not be started. One that hangs in the
// kernel stays in the roster, by which the keeper finds it.
void PosixProcessHost::drop(SpawnedProcess process) {
  constexpr std::chrono::seconds kLimit{2};
  ::kill(-process.pid, SIGKILL);
  ::kill(process.pid, SIGKILL);  // It may not lead its group yet.
  int status = 0;
  const bool reaped = reap_within(process.pid, kLimit, status);
  if (reaped && roster_) roster_->reaped(process.pid);
}

std::vector<Result<int>> PosixProcessHost::finish_spawns() {
  std::vector<Result<int>> pids;
  auto started = spawner_.finish();
  DDPRUN_ASSERT(started.size() <= soon_.size());
  auto next = started.begin();
  bool failed = false;
  for (Soon& soon : soon_) {
    if (failed) {
      if (soon.forked) drop(std::move(*soon.forked));
      continue;
    }
    if (soon.forked) {
      const int pid = watch(soon.local_rank, std::move(*soon.forked));
      workers_.at(pid).is_fork = true;
      pids.emplace_back(pid);
      continue;
    }
    DDPRUN_ASSERT(next != started.end());
    Result<SpawnedProcess>& process = *next++;
    failed = process.has_error();
    if (failed) {
      pids.emplace_back(process.error());
    } else {
      pids.emplace_back(watch(soon.local_rank, std::move(*process)));
    }
  }
  soon_.clear();
  return pids;
}

// Without a pidfd SIGCHLD leads to reap(); that of a worker which has ended already may have come
// before the worker was known.
void PosixProcessHost::watch_exit(int pid) {
  Worker& worker = workers_.at(pid);
  if (!worker.exit.is_open()) {
    if (child_has_ended(pid, UniqueFd())) {
      boost::asio::post(loop_, [this, pid, alive = std::weak_ptr(alive_)] {
        if (alive.lock()) reap(pid);
      });
    }
    return;
  }
  worker.exit.async_wait(stream_descriptor::wait_read, [this, pid, alive = std::weak_ptr(alive_)](
                                                           boost::system::error_code error) {
    if (!error && alive.lock()) reap(pid);
  });
}

void PosixProcessHost::end_family_with(int local_rank) {
  for (auto& [pid, worker] : workers_) {
    if (worker.local_rank == local_rank) worker.ends_family = true;
  }
}

// Only its pidfd leads here: pidfds become ready in the order of the exits, the kernel's list of
// dead children is in the order of the starts.
void PosixProcessHost::reap(int pid) {
  const auto found = workers_.find(pid);
  if (found == workers_.end()) return;
  const TimePoint noticed = std::chrono::steady_clock::now();
  siginfo_t info{};
  const int outcome = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  if (outcome != 0) return end_unseen(pid, noticed);
  if (info.si_pid == 0) return watch_exit(pid);
  DDPRUN_ASSERT(info.si_pid == pid);
  const WorkerDeath death = death_of(found->second.local_rank, info);
  // Not reaped yet, its number is still its own.
  if (found->second.ends_family && !death.succeeded()) {
    ::kill(-pid, SIGKILL);
    (void)kill_family(death.local_rank, kFamilyLimit);
  }
  (void)::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
  workers_.erase(found);
  if (roster_) roster_->reaped(pid);
  if (on_exit) on_exit(death, noticed);
}

// Its pidfd shows that it has ended, but the kernel does not report how: something in this process
// has reaped it, or a seccomp profile forbids waitid.
void PosixProcessHost::end_unseen(int pid, TimePoint noticed) {
  log::warning("how process " + std::to_string(pid) +
               " ended is not known (waitid: " + std::strerror(errno) + "): taken for a failure");
  const WorkerDeath death{
      .local_rank = workers_.at(pid).local_rank, .pid = pid, .exit_code = kExitFailed};
  workers_.erase(pid);
  if (roster_) roster_->reaped(pid);
  if (on_exit) on_exit(death, noticed);
}

// In the order of their process ids: which of those that end within the same moment was first is
// not known without pidfds.
void PosixProcessHost::reap_unwatched() {
  std::vector<int> ended;
  for (const auto& [pid, worker] : workers_) {
    if (!worker.exit.is_open() && child_has_ended(pid, UniqueFd())) ended.push_back(pid);
  }
  for (const auto alive = std::weak_ptr(alive_); const int pid : ended) {
    if (alive.lock()) reap(pid);
  }
}

// A dead worker hides the orphans behind it until its pidfd is served; its own SIGCHLD, which comes
// after that, leads here again.
void PosixProcessHost::watch_orphans() {
  child_signals_.async_wait(
      [this, alive = std::weak_ptr(alive_)](boost::system::error_code error, int) {
        if (error || !alive.lock()) return;
        fork_server_.check_stopped();
        reap_unwatched();
        if (!alive.lock()) return;  // The handler of one end may have ended all.
        reap_unknown_children([this](int pid) { return is_ours(pid); });
        watch_orphans();
      });
}

void PosixProcessHost::signal_workers(int signal) {
  for (const auto& [pid, worker] : workers_) signal_group(pid, signal);
}

void PosixProcessHost::signal_worker(int local_rank, int signal) {
  for (const auto& [pid, worker] : workers_) {
    if (worker.local_rank == local_rank) signal_group(pid, signal);
  }
}

bool PosixProcessHost::is_fork(int pid) const {
  const auto found = workers_.find(pid);
  return found != workers_.end() && found->second.is_fork;
}

std::map<int, int> PosixProcessHost::pids() const {
  std::map<int, int> pids;
  for (const auto& [pid, worker] : workers_) pids[worker.local_rank] = pid;
  return pids;
}

std::vector<std::string> PosixProcessHost::abandon() {
  std::vector<std::string> left;
  for (const auto& [pid, worker] : workers_) {
    left.push_back("local rank " + std::to_string(worker.local_rank) + ", " +
                   describe_process(pid));
  }
  workers_.clear();
  return left;
}

void PosixProcessHost::kill_strays() {
  if (workers_.empty()) kill_cgroup_strays();
  strays_killed_ = workers_.empty();
  const StrayReport report = kill_unknown_children([this](int pid) { return is_ours(pid); });
  for (const std::string& process : report.stuck) {
    log::warning("a process left by a worker survives SIGKILL: " + process);
  }
  if (!workers_.empty()) return;
  families_.clear();
  if (roster_ && report.stuck.empty()) roster_->forget(::getpid(), fork_server_.pid());
}

// We may be killed ourselves at any moment, and our launcher, too. The keeper then finds what is
// left by its worker (families_of), so a worker ends after all that it has started, and starts
// nothing meanwhile.
void PosixProcessHost::kill_everything() {
  fork_server_.end("the agent ends");
  signal_workers(SIGSTOP);
  for (const auto& [pid, worker] : workers_) kill_descendants(pid);
  signal_workers(SIGKILL);
  workers_.clear();
  kill_strays();
}

}  // namespace ddprun::agent
