#pragma once
// The far end of --hosts: a ddprun that gets its orders, and later signals, through its standard
// input (remote_node.h). Called by main.cc before anything else is read.

#include <optional>
#include <string>

#include "common/error.h"
#include "common/frames.h"
#include "launcher/guard/guardian.h"
#include "launcher/hosts/remote_node.h"

namespace ddprun::launcher {

class ControlStdin {
 public:
  // Prints the ready line and waits for the orders, for at most a minute. Absent: the launching
  // ddprun has gone, which is not a failure of this process.
  static Result<std::optional<Orders>> receive(ControlStdin& control);

  // Sets the folder and the variables that the orders name, and unsets this machine's PET_*.
  static Result<void> obey(const Orders& orders);

  // The next frame after the orders; absent once the input has ended. For a far end without a
  // guardian.
  std::optional<std::string> next();

  // A service beside the agents: passes signals on to its parent, the guardian, and sends it
  // SIGTERM once the input has ended.
  GuardedChild watcher();

 private:
  FrameReader reader_{kOrdersBytesMax};
};

}  // namespace ddprun::launcher
