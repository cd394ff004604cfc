#pragma once
// The signal with which the launching ddprun of --host-discovery withdraws a node whose host is not
// listed any more. It announces the end like those of --preempt-signal. Sent within one machine
// only, to a node's launcher by the process that reads what comes from the launching one. A
// launcher whose node has left a run that goes on elsewhere sends it to its daemon.

#include <csignal>

namespace ddprun {

inline constexpr int kLeaveSignal = SIGPWR;

}  // namespace ddprun
