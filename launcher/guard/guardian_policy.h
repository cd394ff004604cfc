#pragma once
// The decisions of the guardian, without the processes: how often a service is started again, when
// a signal means "now", and the exit code of the whole of ddprun. Pure.

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
  bool unseen = false;  // Reaped by other code: counts as a failure, as its end is unknown.
};

// 128 + n for signal n, like in a shell.
int exit_code_of(const ChildEnd& end);

// Whether a service has ended because it had no work left, like the daemon with its last run. False
// for an end that was not seen.
bool is_done(const ChildEnd& end);

// "was killed by SIGKILL", "exited with code 3".
std::string describe(const ChildEnd& end);

// The message when the agent `name` was killed, by others or by us after a second Ctrl-C.
std::string agent_killed(const std::string& name, int pid, const ChildEnd& end, bool by_us);

// The message when it was killed by others once its exit code was decided.
std::string agent_killed_late(const std::string& name, int pid, const ChildEnd& end);

// At most `per_window` new starts in any `window`; the first at once, then after 0.2 s, 0.4 s, ...,
// and those beyond that number as soon as it allows: what is dead for ever repairs nothing.
class RespawnBudget {
 public:
  RespawnBudget(int per_window, Duration window) : per_window_(per_window), window_(window) {}

  struct Next {
    TimePoint at;          // When to start it again.
    bool is_late = false;  // It dies too often: not before the window allows.
  };
  // The service has died.
  Next died(TimePoint now);
  int used() const {
    return static_cast<int>(starts_.size());
  }  // Within the window of the last death.

 private:
  int per_window_;
  Duration window_;
  std::deque<TimePoint> starts_;
};

// The message when a service has died: its `count`th death of at most `per_window`.
std::string service_died(const std::string& what, const RespawnBudget::Next& next, TimePoint now,
                         int count, int per_window);

// The message when the keeper was killed.
std::string keeper_killed(int pid, const RespawnBudget::Next& next, TimePoint now);

// The source of a signal.
enum class Origin {
  kProcess,   // Some process called kill().
  kTerminal,  // The user pressed Ctrl-C, Ctrl-\ or Ctrl-Z.
  kNow,       // Queued by ddprun after two Ctrl-C at another terminal.
};

// Which signal means "kill everything now": the second Ctrl-C or Ctrl-\ at a terminal. Signals from
// processes may arrive twice for other reasons (timeout(1) sends one to its child and one to the
// child's group), so the agents judge those by the time between them (SupervisorOptions::patience).
class InterruptCounter {
 public:
  bool signalled(int signal, Origin origin);

 private:
  int typed_ = 0;
};

}  // namespace ddprun::launcher
