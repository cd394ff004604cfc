#pragma once
// The tiny process that the user started: the parent of this node's agents and of the rendezvous
// daemon, if this node hosts it. It does nothing but watch them, so that a process is always left
// to clean up:
//
//   agent killed     its workers die by PDEATHSIG; their orphans become children of this process,
//                    the sub-reaper, and are killed
//   guardian killed  agents see it (ParentWatch) and kill all below them; services die by PDEATHSIG
//   service killed   started again, at most a few times a minute
//   keeper killed    another one is started, with the same knowledge
//   both killed      the keeper (keeper.h) kills the rest
//
// SIGTSTP (Ctrl-Z) pauses: the agents stop their workers and go on beating, we stop ourselves;
// SIGCONT undoes both.
//
// One thread, no loop library; called by the launcher's main before any thread is started.

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "launcher/guard/keeper.h"

namespace ddprun::launcher {

// The exit code of an agent once it is decided and reported, in memory that the agent shares with
// us: whatever becomes of the agent after that does not change it.
class DecidedCode {
 public:
  static Result<DecidedCode> make();

  void decide(int exit_code) const;  // In the agent.
  std::optional<int> read() const;   // Nothing: it is not decided yet.

 private:
  explicit DecidedCode(UniqueFd memory) : memory_(std::move(memory)) {}

  UniqueFd memory_;
};

struct GuardedChild {
  enum class Kind {
    kAgent,    // Decides the exit code; is never started again; gets the signals that we get.
    kService,  // Started again if it dies; ended when the last agent is gone. Ignores SIGUSR1 and
               // SIGUSR2, which batch systems send to every process of a step.
  };
  Kind kind = Kind::kAgent;
  // For a service: sent instead of SIGTERM if our agents have left a run that continues elsewhere
  // (kExitPreempted, kExitNeverReady).
  int leave_signal = SIGTERM;
  std::string
      name;  // As in "<name> was killed by SIGKILL": "node 1's agent", "the rendezvous daemon".

  // Either a function, run in a fork of ours, which returns the exit code. It starts in a process
  // group of its own, with our signal mask as it was before guard() (but see takes_signals), and
  // with SIGPIPE and SIGTTOU ignored.
  std::function<int()> body = {};

  // The body handles signals itself: those that we handle stay blocked until it does, and none is
  // lost.
  bool takes_signals = false;
  // It reads them by SentSignals, and gets those that we pass on as passed_on_signal().
  bool knows_senders = false;

  // Or a program. argv[0] is a path; `environment` is complete ("NAME=value" each); of our
  // descriptors it gets 0, 1, 2 and `inherited_fds`, under their numbers.
  std::vector<std::string> argv = {};
  std::vector<std::string> environment = {};
  std::vector<int> inherited_fds = {};

  // Of an agent, borrowed; null: its exit code is that of its process.
  const DecidedCode* decided = nullptr;

  // An agent that has nodes elsewhere: it gets a second Ctrl-C as Origin::kNow, so that it can pass
  // it on; it is killed only if it has not ended soon after.
  bool passes_now_on = false;
};

// An agent that was killed, or ended in an unknown way, before its exit code was decided.
struct AgentKilled {
  const GuardedChild& agent;
  int exit_code;     // The exit code of ddprun.
  std::string text;  // Names the agent and how it ended.
  bool by_us;        // After a second Ctrl-C at a terminal.
};

struct GuardianPlan {
  std::vector<GuardedChild> children;  // Started in this order.
  // Called once the keeper lives and before anything is started, to make the things that the keeper
  // has to remove. It may still add children. A failure is logged, and nothing is started.
  std::function<Result<void>()> prepare = {};
  // Called once they have all been started, and once all is over, with the result: for work that
  // can be done while they begin, and while the keeper ends.
  std::function<void()> started = {};
  // Called with each signal once it has been passed on to the agents.
  std::function<void(int signal)> signalled = {};
  std::function<void(int status)> ended = {};
  // Called when nothing else is left, before the keeper ends: to remove everything.
  std::function<void()> tidy_up = {};
  std::function<void(const AgentKilled&)> on_agent_killed = {};
  int respawns_max = 5;  // Per service and `respawn_window`.
  std::chrono::milliseconds respawn_window{std::chrono::minutes(1)};
  std::chrono::milliseconds service_grace{
      2000};                         // From SIGTERM to SIGKILL once the agents are gone.
  std::vector<int> also_forwarded;   // Signals beside the usual ones that the agents handle.
  std::optional<KeeperTask> keeper;  // Absent: nothing cleans up if we die together with an agent.
};

// Starts the children and returns when all agents are gone and nothing else is left. The result is
// the exit code of the first agent that ended with another code than 0 (128 + n for signal n), 130
// after a second Ctrl-C at a terminal while an agent's code was not decided. Forwards SIGINT,
// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT to the agents; see
// stays_ignored() for those that were ignored when we were started.
int guard(const GuardianPlan& plan);

}  // namespace ddprun::launcher
