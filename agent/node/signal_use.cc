#include "agent/node/signal_use.h"

#include <signal.h>

#include <algorithm>

namespace ddprun::agent {

SignalUse use_of(int signal, int sender, int parent, const SignalRules& rules) {
  const auto is_in = [signal](const std::vector<int>& signals) {
    return std::find(signals.begin(), signals.end(), signal) != signals.end();
  };
  const bool is_for_launcher = signal == SIGUSR1 || signal == SIGUSR2 || is_in(rules.preempts);
  const bool launcher_died = parent != rules.launcher;
  if (rules.launcher != 0 && launcher_died) return SignalUse::kIgnore;
  if (rules.launcher != 0 && is_for_launcher && sender != rules.launcher) return SignalUse::kIgnore;
  return is_in(rules.ends_node) ? SignalUse::kEndsNode : SignalUse::kForward;
}

}  // namespace ddprun::agent
