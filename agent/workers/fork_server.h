#pragma once
// The fork server of a node: a Python process that has imported what the workers will import, and
// forks them. It is started with their command and stops before their program (python/startup/
// ddprun_preload). If it fails, workers are only started cold.
//
//   kAbsent    none was started           fork() is refused
//   kLoading   imports                    the same; ends by on_settled
//   kReady     waits for requests         fork() and save() work
//   kGone      ended, or was ended by us: it has refused, hung, or was killed; why() has the reason
//
// A worker is forked twice, so that it becomes our child. It waits on a pipe until we have it as
// our child, by its pidfd, in the roster and in its cgroup, and ends if the pipe ends. Owned by
// PosixProcessHost.
//
// With --preload-keep the server can save itself into a file (agent/process/kept_images.h). That of
// a later run becomes what was saved before it imports: it is a child of its own agent like any
// other, and is not trusted more.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/workers/child_start.h"
#include "agent/workers/fork_messages.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

// What --preload-keep asks of a fork server.
struct KeepOrder {
  bool wanted = false;  // It is to be ready to be saved.
  int saved = -1;       // Borrowed: the file with an earlier one, that it is to become; -1: none.
};

class ForkServer {
 public:
  enum class State { kAbsent, kLoading, kReady, kGone };

  explicit ForkServer(boost::asio::io_context& loop);
  ~ForkServer();  // end().

  // Ends the server that there is. Completes `spec`, the command and environment of the server, and
  // its end of the channel, which becomes its link. `modules`: "auto", or names separated by
  // commas.
  Result<WorkerEnds> prepare(WorkerSpec& spec, const std::string& modules,
                             const KeepOrder& keep = {});
  // The caller has started `spec` with those ends.
  void started(const WorkerSpec& spec, int pid);

  // Once, from the loop: it is ready, or gone. Not called after end().
  std::function<void()> on_settled;
  // From the loop or from within fork() and end(): its process has been reaped.
  std::function<void(int pid)> on_reaped;
  // From the loop, at most once: the saved server cannot be used, for that reason.
  std::function<void(const std::string& why)> on_unfit;

  // From the loop: a module that it was given by its name cannot be imported, for that reason.
  std::function<void(const std::string& why)> on_absent;

  State state() const { return state_; }
  const std::string& why() const { return why_; }  // It is gone; or how much was imported.
  int pid() const { return pid_; }                 // 0: no process.
  bool is_resumed() const { return resumed_; }     // It is the saved one, with nothing added.

  // A worker, at the price of a fork; waits for it, at most kForkLimit. A failure has the reason
  // why it must be started cold.
  Result<SpawnedProcess> fork(const WorkerSpec& spec, const WorkerEnds& ends);

  // Has a server that is ready save itself; waits for it. Returns how many modules it has imported.
  Result<int> save(int file);

  // From the loop, after each SIGCHLD: a server that a signal has stopped makes no progress, and is
  // ended.
  void check_stopped();

  // SIGKILL, and reaps it.
  void end(const std::string& why);

 private:
  bool send_file(const std::string& kind, int file);
  void await_reply();
  void take(const ForkReply& reply);
  void settle(State state, std::string why);
  std::string objection() const;
  std::string objection(const WorkerSpec& spec) const;
  Result<ForkReply> reply_to_fork();
  Result<ForkReply> reply_within(Duration limit);
  Result<SpawnedProcess> adopt(int pid, const WorkerSpec& spec, std::uint64_t before) const;

  boost::asio::io_context& loop_;
  boost::asio::posix::stream_descriptor channel_;
  State state_ = State::kAbsent;
  std::string why_;
  int pid_ = 0;
  bool resumed_ = false;
  bool tries_saved_ = false;  // It is to become the saved one, and has not answered yet.
  std::uint64_t requests_ = 0;
  std::vector<std::string> argv_;
  std::vector<std::string> environment_;
};

}  // namespace ddprun::agent
