#pragma once
// The signals that a ddprun which starts others by ssh passes on to them: blocked from then on, and
// read from a descriptor (read_signal()). Used by hosts_run.cc and discovery_run.cc.

#include <signal.h>
#include <sys/signalfd.h>

#include "common/system/child.h"
#include "common/system/descriptors.h"
#include "launcher/guard/guardian_signals.h"

namespace ddprun::launcher {

inline Result<UniqueFd> signals_to_pass_on() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    if (!stays_ignored(signal)) ::sigaddset(&handled, signal);
  }
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return refused_call("receiving signals", "signalfd", "Linux 2.6.27");
  return fd;
}

}  // namespace ddprun::launcher
