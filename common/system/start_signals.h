#pragma once
// What a program undoes of the signals that its parent ignored or blocked. Called first in every
// main: later, a child may have ended unseen.

#include <signal.h>

namespace ddprun {

// A program inherits what its parent ignores and blocks. With SIGCHLD ignored the kernel reaps our
// children itself, and how they ended is lost; what is blocked would never reach a handler. SIGXFSZ
// is ignored instead: a file that may not grow is a failure like a full disk, and no reason to die.
// Everything else that is ignored stays so, see guardian_signals.h.
inline void start_signals() {
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace ddprun
