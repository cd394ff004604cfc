#pragma once
// What the guardian decides, without the processes: how often a service is started again, when a
// signal means "now", and which exit code the whole of ddprun ends with. Pure.

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "common/time.h"

namespace ddprun::launcher {

// How a child of the guardian ended.
struct ChildEnd {
  int exit_code = 0;  // Meaningful when signal == 0.
  int signal = 0;
  bool unseen = false;  // Somebody else has reaped it: a failure, for all that we know.
};

// 128 + n for signal n, as a shell has it.
int exit_code_of(const ChildEnd& end);

// Whether a service has ended because nothing was left to do, as the daemon with its last run. Of
// an end that was not seen nobody knows that.
bool is_done(const ChildEnd& end);

// "was killed by SIGKILL", "exited with code 3".
std::string describe(const ChildEnd& end);

// What is said when somebody has killed the agent `name`, or when we have after a second Ctrl-C.
std::string agent_killed(const std::string& name, int pid, const ChildEnd& end, bool by_us);

// What is said when somebody has killed the keeper.
std::string keeper_killed(int pid, bool another_comes);

// At most `per_window` new starts in any `window`; the first at once, then after 0.2 s, 0.4 s, ...
class RespawnBudget {
 public:
  RespawnBudget(int per_window, Duration window) : per_window_(per_window), window_(window) {}

  // The service has died. When to start it again; nothing once the budget is used up.
  std::optional<TimePoint> died(TimePoint now);
  int used() const {
    return static_cast<int>(starts_.size());
  }  // Within the window of the last death.

 private:
  int per_window_;
  Duration window_;
  std::deque<TimePoint> starts_;
};

// Who a signal is from.
enum class Origin {
  kProcess,   // Some process called kill().
  kTerminal,  // Somebody pressed Ctrl-C, Ctrl-\ or Ctrl-Z.
  kNow,       // Our own kind, for somebody who pressed Ctrl-C twice at another terminal.
};

// Which signal means "kill everything now": the second Ctrl-C or Ctrl-\ at a terminal. Signals that
// processes send come twice for other reasons (timeout(1) sends one to its child and one to the
// child's group), so the agents judge those by the time between them (SupervisorOptions::patience).
class InterruptCounter {
 public:
  bool signalled(int signal, Origin origin);

 private:
  int typed_ = 0;
};

}  // namespace ddprun::launcher
