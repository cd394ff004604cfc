#pragma once
// Workers as processes of this machine: started by a Spawner, watched by pidfd on the agent's
// loop, or by SIGCHLD where there are no pidfds, reaped one by one. Makes the calling process a
// sub-reaper, so that whatever workers leave behind comes to us instead of to init; what ends there
// by itself is reaped without being killed.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/process/roster.h"
#include "agent/workers/child_start.h"
#include "agent/workers/fork_server.h"
#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "common/worker_death.h"

namespace ddprun::agent {

class PosixProcessHost {
 public:
  explicit PosixProcessHost(boost::asio::io_context& loop);
  ~PosixProcessHost();  // kill_everything().

  // Called from the loop, once per worker, in the order in which they are reaped: local rank, pid,
  // exit code and signal of the record are set. With it, when the end was noticed: before it was
  // reaped, which others may have seen.
  std::function<void(const WorkerDeath&, TimePoint noticed)> on_exit;

  // Starts one worker in a session of its own with PDEATHSIG=SIGKILL, default signal mask and
  // dispositions, all other descriptors closed. Returns its process id. A Failure names the stage
  // and errno ("starting local rank 3: execve ./train: Permission denied").
  Result<int> spawn(const WorkerSpec& spec);

  // Sends `signal` to the process group of every living worker. If a worker handles a signal, the
  // processes that compute for it do not get it: signal_receivers().
  void signal_workers(int signal);

  int living() const { return static_cast<int>(workers_.size()); }

  // SIGKILLs what workers left behind (processes re-parented to us, the sub-reaper), until none is
  // left; bounded time. Living workers and what hangs below them are spared.
  void kill_strays();

  // As spawn(), for many: each is started while the caller prepares the next, with `ends` as its
  // streams. False: an earlier one could not be started, so neither will this one be.
  bool spawn_soon(WorkerSpec spec, WorkerEnds ends);
  // Waits for those. Their process ids in order; the first failure is the last.
  std::vector<Result<int>> finish_spawns();

  // SIGKILLs the workers and everything below us at once, without a call of on_exit. For the end:
  // the guardian is gone, or we are about to be.
  void kill_everything();

  // A child that the agent started by other means: never killed nor reaped as a stray.
  void spare(int pid) { spared_.insert(pid); }

  // As signal_workers(), to one worker, if it lives.
  void signal_worker(int local_rank, int signal);

  // If this one fails, what it has started ends with it, not with the round: the other workers live
  // on. What any worker has started is gone before another one is started in its place.
  void end_family_with(int local_rank);

  // Starts a fork server, in place of the one that there is, which imports `modules`, with the
  // command and environment of `spec`; from then on workers are its forks wherever it can make
  // them, and are started cold otherwise. `settled`: once, from the loop, when it has imported them
  // or has failed.
  Result<void> preload(WorkerSpec spec, const std::string& modules, std::function<void()> settled,
                       const KeepOrder& keep = {});
  // The fork server, as far as it has come.
  const ForkServer& fork_server() const { return fork_server_; }
  Result<int> save_fork_server(int file) { return fork_server_.save(file); }
  // Of the fork server that preload() starts.
  std::function<void(const std::string& why)> on_unfit;
  std::function<void(const std::string& why)> on_absent;
  // Why a worker was started cold although there was to be a fork server; called for each.
  std::function<void(int local_rank, const std::string& why)> on_cold;

  // From now on workers are noted there, for the keeper.
  void use_roster(std::shared_ptr<WorkerRoster> roster) { roster_ = std::move(roster); }

  // From now on workers are born in a cgroup of ours below `job`; all of it is killed at once.
  Result<void> use_cgroup(const std::string& job);

  std::map<int, int> pids() const;  // Of the workers that live, by local rank.
  bool is_fork(int pid) const;      // Of the fork server, not started cold.

  // Forgets the workers that are left, without a call of on_exit. Returns what each is and does,
  // for the message that SIGKILL does not end them.
  std::vector<std::string> abandon();

 private:
  struct Worker {
    int local_rank;
    boost::asio::posix::stream_descriptor exit;  // Its pidfd; closed if there are none.
    bool ends_family = false;
    bool is_fork = false;
  };

  // One that spawn_soon() was called for: a fork already, or under way in the spawner.
  struct Soon {
    int local_rank;
    std::optional<SpawnedProcess> forked;
  };

  WorkerSpec placed(WorkerSpec spec);
  std::optional<SpawnedProcess> forked(const WorkerSpec& spec, const WorkerEnds& ends);
  void drop(SpawnedProcess process);
  int watch(int local_rank, SpawnedProcess process);
  void watch_exit(int pid);
  void reap_unwatched();
  void watch_orphans();
  Result<void> renew_cgroup();
  void kill_cgroup_strays();
  StrayReport kill_family(int local_rank, std::chrono::milliseconds limit);
  void replace_family(WorkerSpec& spec);
  // Reaps `pid` if it has ended and calls on_exit.
  void reap(int pid);
  void end_unseen(int pid, TimePoint noticed);
  bool is_ours(int pid) const { return workers_.contains(pid) || spared_.contains(pid); }

  boost::asio::io_context& loop_;
  boost::asio::signal_set child_signals_;
  Spawner spawner_;
  ForkServer fork_server_;
  bool preloads_ = false;  // Workers are to be forks.
  std::vector<Soon> soon_;
  std::map<int, Worker> workers_;  // By process id.
  // By local rank: what is in the environment of its last worker, and of what that has started.
  std::map<int, std::string> families_;
  int workers_made_ = 0;
  std::set<int> spared_;
  std::shared_ptr<WorkerRoster> roster_;  // Null: none is kept.
  std::string cgroup_;                    // Of this agent; empty: none.
  std::string workers_cgroup_;            // Below it: of the workers that live, or come next.
  int cgroups_made_ = 0;
  bool cgroup_used_ = false;
  bool strays_killed_ = true;  // Of all workers until now, none of which lives.
  UniqueFd cgroup_fd_;
  std::shared_ptr<const bool> alive_ =
      std::make_shared<const bool>(true);  // Held weakly by handlers.
};

}  // namespace ddprun::agent
