#pragma once
// A TCPStore server inside rank 0, for jobs with a launcher that does not host a store (torchrun
// before 2.5, no launcher at all): the StoreClients on a thread. Other users of this host are
// refused.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "common/store_sockets/store_clients.h"
#include "common/system/descriptors.h"
#include "common/system/peer_user.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

class StoreHost {
 public:
  // Listens on the address of `host`, or on all addresses if `host` is a name that leads elsewhere
  // (a service, a proxy) or back to loopback only. Port 0: any. Throws Error(system) naming address
  // and port.
  StoreHost(const std::string& host, std::uint16_t port, Clock::time_point deadline);
  ~StoreHost();
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  void run();
  void accept_all();
  bool may_use(int connection);
  void pause_unless_idle();
  bool outlast(const char* call);
  void complain(const char* call);

  UniqueFd listener_;
  UniqueFd stop_;  // An eventfd.
  std::uint16_t port_ = 0;
  PeerUsers users_;
  std::unique_ptr<store::StoreClients> clients_;
  Clock::time_point paused_until_{};  // Accepts no connection before.
  bool reported_ = false;             // complain() has reported a shortage.
  Clock::time_point short_since_{};
  SpareDescriptor spare_;
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
