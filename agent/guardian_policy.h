#pragma once
// What the guardian decides, without the processes: how often a service is started again, when an
// interrupt means "now", and which exit code the whole of ddprun ends with. Pure.

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "common/time.h"

namespace ddprun::agent {

// How a child of the guardian ended.
struct ChildEnd {
  int exit_code = 0;  // Meaningful when signal == 0.
  int signal = 0;
};

// 128 + n for signal n, as a shell has it.
int exit_code_of(const ChildEnd& end);

// "was killed by SIGKILL", "exited with code 3".
std::string describe(const ChildEnd& end);

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

// The second SIGINT within a moment, or the third ever, means: kill everything now.
class InterruptCount {
 public:
  explicit InterruptCount(Duration moment) : moment_(moment) {}
  bool interrupt(TimePoint now);

 private:
  Duration moment_;
  int count_ = 0;
  TimePoint last_{};
};

}  // namespace ddprun::agent
