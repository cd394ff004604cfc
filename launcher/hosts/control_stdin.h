#pragma once
// The far end of --hosts: a ddprun that gets its orders, and later signals, through its standard
// input (orders.h). Called by main.cc before anything else is read.

#include <optional>
#include <string>

#include "common/error.h"
#include "common/frames.h"
#include "launcher/guard/guardian.h"
#include "launcher/hosts/orders.h"

namespace ddprun::launcher {

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
