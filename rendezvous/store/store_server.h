#pragma once
// A TCPStore server: the StoreClients on a listening socket, and the decision which of them are
// admitted. The agent of group rank 0 opens one for each round, so that no key of an earlier round
// can be read; the daemon offers one to unmodified torchrun agents. Everything happens on the
// thread that runs the io_context.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/store_sockets/store_clients.h"
#include "common/system/descriptors.h"

namespace ddprun::rendezvous {

struct StoreServerOptions {
  std::string address = {};      // Numeric; empty: every address of this machine.
  std::uint16_t port = 0;        // 0: any.
  bool admit_everyone = false;   // Else this machine and the addresses of admit().
  bool own_user_only = false;    // Of this machine's users only this process's own, and root.
  bool await_admission = false;  // Until admit() clients that connect wait, and none is refused.
  int handed_over_fd = -1;       // Clients come from a StoreHandOver here, too; it stays open.
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

// The daemon's end of the store at the endpoint's port. A static command line names one port for
// all (--master-port), where torchrun has its store: ranks that connect there are handed over to
// the agent on this machine that hosts the round's store, as descriptors, so that neither the
// daemon's load nor its death touches their connections. The other end is a StoreServer's
// `handed_over_fd`. Called by daemon/server.cc, on the loop's thread.
class StoreHandOver {
 public:
  // `socket`: an end of a pair of SOCK_SEQPACKET sockets that do not block.
  StoreHandOver(boost::asio::io_context& io, UniqueFd socket) : socket_(io, socket.release()) {}

  // Those that the agent has not taken yet wait in line: it takes none before it has a seat.
  void send(UniqueFd client);

 private:
  void flush();

  boost::asio::posix::stream_descriptor socket_;
  std::deque<UniqueFd> line_;
  bool waits_ = false;
};

}  // namespace ddprun::rendezvous
