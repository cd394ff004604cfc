#pragma once
// A small TCPStore server inside rank 0, for jobs whose launcher does not host a store (torchrun
// before 2.5, no launcher at all). Enough for this SDK's clients and for PyTorch's; the full one is
// the agent's. Other users of this host are refused.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/system/peer_user.h"
#include "common/system/unique_fd.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/store/store_session.h"

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
  struct Client {
    UniqueFd socket;
    StoreSession session;
  };

  void run();
  void accept_all();
  bool may_use(int connection);
  void pause_unless_idle();
  bool outlast(const char* call);
  void complain(const char* call);
  bool serve(Client& client, short events);
  static bool flush(Client& client);

  UniqueFd listener_;
  UniqueFd stop_;  // An eventfd.
  std::uint16_t port_ = 0;
  PeerUsers users_;
  StoreTable table_;
  std::vector<std::unique_ptr<Client>> clients_;
  Clock::time_point paused_until_{};  // Nobody is accepted before.
  bool said_ = false;                 // That something is short.
  std::thread thread_;
};

}  // namespace ddprun::worker_sdk
