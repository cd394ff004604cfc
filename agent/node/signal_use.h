#pragma once
// What an agent does with a signal that it has received. Pure.

#include <vector>

namespace ddprun::agent {

enum class SignalUse {
  kIgnore,
  kForward,   // To the workers.
  kEndsNode,  // The node ends: --signals-to-handle and --preempt-signal.
};

struct SignalRules {
  std::vector<int> ends_node;
  std::vector<int> preempts;  // Part of ends_node.
  int launcher = 0;           // Its process; 0: there is none.
};

// `sender`: its process, or 0; `parent`: of this process, now.
//
// A batch system may send SIGUSR1, SIGUSR2 and the signal that announces the end of its time to
// every process of a step. These are meant for the launcher, which passes them on.
//
// When the launcher dies, the kernel sends SIGHUP to agents that are stopped, and continues them.
// The workers do not get it: all of them are about to be killed together with what they have
// detached, which could not be attributed to a worker that has ended before (PosixProcessHost).
SignalUse use_of(int signal, int sender, int parent, const SignalRules& rules);

}  // namespace ddprun::agent
