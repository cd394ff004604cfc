#pragma once
// The guardian's children, and what is sent to them. Only guardian.cc uses this.

#include <signal.h>

#include <optional>
#include <vector>

#include "launcher/guard/guarded_process.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/guardian_policy.h"
#include "launcher/guard/guardian_signals.h"

namespace ddprun::launcher {

struct Child {
  const GuardedChild* plan;
  std::optional<GuardedProcess> process;
  RespawnBudget budget;
  std::optional<TimePoint> start_at;

  bool is_agent() const { return plan->kind == GuardedChild::Kind::kAgent; }
};

inline void signal_agents(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) {
    if (child.is_agent() && child.process) ::kill(child.process->pid, signal);
  }
}

// A second Ctrl-C, to those that have nodes elsewhere. False: there are none.
inline bool pass_now_on(const std::vector<Child>& children) {
  bool any = false;
  for (const Child& child : children) {
    if (!child.process || !child.plan->passes_now_on) continue;
    ::sigqueue(child.process->pid, SIGINT, {.sival_int = kNowValue});
    any = true;
  }
  return any;
}

}  // namespace ddprun::launcher
