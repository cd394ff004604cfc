#pragma once
// The far end of --hosts: a ddprun that gets its orders, and later signals, through its standard
// input (orders.h). Called by main.cc before anything else is read.

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>
#include <string>

#include "common/error.h"
#include "common/frames.h"
#include "common/system/child.h"
#include "common/system/descriptors.h"
#include "launcher/guard/guarded_process.h"
#include "launcher/guard/guardian.h"
#include "launcher/hosts/orders.h"

namespace ddprun::launcher {

// The signals that a ddprun which starts others by ssh passes on to them: blocked from then on, and
// read from a descriptor (read_signal()). Used by hosts_run.cc and discovery_run.cc.
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

class ControlStdin {
 public:
  // Says that we are here and waits for the orders, for at most a minute. Nothing: the launching
  // ddprun went away, which is no failure of ours.
  static Result<std::optional<Orders>> receive(ControlStdin& control);

  // Sets the folder and the variables that the orders name; PET_* of this machine are forgotten.
  static Result<void> obey(const Orders& orders);

  // The next frame behind the orders; nothing once the input has ended. For a far end that has no
  // guardian.
  std::optional<std::string> next();

  // A service beside the agents: passes signals on to the guardian, its parent, and SIGTERM once
  // the input has ended.
  GuardedChild watcher();

 private:
  FrameReader reader_{kOrdersBytesMax};
};

}  // namespace ddprun::launcher
