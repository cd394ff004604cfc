#pragma once
// Notifies the service manager that started this process (systemd, Type=notify) of its state: a
// datagram to the socket named in NOTIFY_SOCKET, as sd_notify(3) describes it. Does nothing without
// that variable.

#include <optional>
#include <string>
#include <string_view>

#include "common/time.h"

namespace ddprun::rendezvous {

class ServiceNotifier {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment.
  static ServiceNotifier from_environment();

  void notify(std::string_view state) const;  // "READY=1", "WATCHDOG=1", "STOPPING=1\nSTATUS=...".

  // How long it waits for WATCHDOG=1 before it takes this process for dead.
  std::optional<Milliseconds> watchdog() const { return watchdog_; }

 private:
  std::string socket_;  // A path, or '@' and an abstract name; empty: no service manager.
  std::optional<Milliseconds> watchdog_;
};

}  // namespace ddprun::rendezvous
