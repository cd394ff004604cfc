#pragma once
// A TCPStore server: the StoreClients on a listening socket, and the decision which of them are
// admitted. The agent of group rank 0 opens one for each round, so that no key of an earlier round
// can be read; the daemon offers one to unmodified torchrun agents. Everything happens on the
// thread that runs the io_context.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/store_sockets/store_clients.h"

namespace ddprun::rendezvous {

struct StoreServerOptions {
  std::string address = {};      // Numeric; empty: every address of this machine.
  std::uint16_t port = 0;        // 0: any.
  bool admit_everyone = false;   // Else this machine and the addresses of admit().
  bool own_user_only = false;    // Of this machine's users only this process's own, and root.
  bool await_admission = false;  // Until admit() clients that connect wait, and none is refused.
  int handed_over_fd = -1;       // Clients come from here, too (hand_over.h); it stays open.
  store::StoreClientsOptions clients = {};
};

class StoreServer {
 public:
  // Listens when it returns. Costs microseconds: one is opened per round.
  static Result<std::unique_ptr<StoreServer>> listen(boost::asio::io_context& io,
                                                     StoreServerOptions options);
  ~StoreServer();  // close()s.
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const;

  // From now on takes connections from these numeric addresses too, and from no others admitted
  // before. Connections that exist stay. Fails if one is not an address; the others are admitted.
  Result<void> admit(const std::vector<std::string>& addresses);

  // Drops all connections and frees the port, at once.
  void close();

  std::size_t connection_count() const;
  std::size_t refused_count() const;  // Connections not admitted or too many.
  std::size_t key_count() const;

 private:
  class Core;
  explicit StoreServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::shared_ptr<Core> core_;
};

}  // namespace ddprun::rendezvous
