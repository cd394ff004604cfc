#pragma once
// The answers of the agents of this user's runs on this machine (agent/window/window.h), what is
// known of an agent that does not answer, and whether all do.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/history/history.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

struct AgentAnswer {
  std::string path;  // Of its socket.
  int pid = 0;       // Of the agent; 0: not known.
  // The whole answer. A failure is Errc::kPeerSilent if a process listens there and does not answer
  // in time; any other failure means that no process listens there.
  Result<std::string> text;
  bool is_mute() const { return !text && text.error().code == Errc::kPeerSilent; }
};

struct AgentQuestion {
  std::string path;
  std::string text;
};

// Queries all at once, and calls the handler from the loop when each has answered or failed, after
// 5 s at the latest; not if the returned handle is destroyed before. A process that is stopped is
// not waited for.
std::shared_ptr<void> async_query_windows(boost::asio::io_context& io,
                                          const std::vector<AgentQuestion>& questions,
                                          std::function<void(std::vector<AgentAnswer>)> handler);

// Like async_query_windows(), but blocks; `question` may depend on the socket.
std::vector<AgentAnswer> query_windows(
    const std::vector<std::string>& paths,
    const std::function<std::string(const std::string& path)>& question);
std::vector<AgentAnswer> query_windows(const std::vector<std::string>& paths,
                                       const std::string& question);

// The answer of one. Blocks.
Result<std::string> query_window(const std::string& path, const std::string& question);

// The sockets of a run's agents here, in the order of its nodes.
std::vector<std::string> windows_of(const PastRun& run);

// "run job7 is in progress (launcher 4711), but its agent (4712, stopped by a signal) does not
// answer", from /proc and the answers of its agents; empty if each agent that is there answers.
std::string mute_text(const PastRun& run, const std::vector<AgentAnswer>& answers);

// The text from the known facts: the pid (0: not known) and the state in /proc of each agent that
// does not answer, and how many agents there are. Pure.
struct MuteAgent {
  int pid = 0;
  char state = '?';
};
std::string mute_text(const RunRecord& run, const std::vector<MuteAgent>& mute, std::size_t all);

// `ddprunctl health`: whether the agents of the runs on this machine answer. For probes, which have
// no token: it queries this user's agents here, and no daemon. Called by ctl_main.cc.

// What the agents of one run in progress answered. There may be none: as the run begins, or once
// this node has left a run whose daemon it still hosts.
struct RunHealth {
  std::string run_id;
  std::string mute;  // A sentence about those that do not answer; or empty.
  std::vector<rendezvous::RunStatus> answers;  // Of the others.
};

// One line for each run, or why this machine's part of it is not well. Pure.
Result<std::string> health_text(const std::vector<RunHealth>& runs, const std::string& run_id);

// Queries the agents of the run `run_id`, or of all runs of this user here; takes at most 5 s a
// run.
Result<std::string> health_of_this_machine(const std::string& run_id);

}  // namespace ddprun::launcher
