#pragma once
// The daemon's end of the store at the endpoint's port. A static command line names one port for
// all (--master-port), where torchrun has its store: ranks that connect there are handed over to
// the agent on this machine that hosts the round's store, as descriptors, so that neither the
// daemon's load nor its death touches their connections. The other end is a StoreServer's
// `handed_over_fd`. Called by daemon/server.cc, on the loop's thread.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>

#include "common/system/descriptors.h"

namespace ddprun::rendezvous {

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
