#pragma once
// The agent's end of the socket pair to its node's memory server.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

#include "agent/memory/memory_orders.h"

namespace ddprun::agent::memory {

class MemoryLink {
 public:
  // `fd` is borrowed.
  MemoryLink(boost::asio::io_context& loop, int fd);

  // From the loop.
  std::function<void(const Report&)> on_report;

  // A server that does not read what it is sent gets no more of it.
  void send(const Order& order);
  void close();  // on_report is not called any more.

 private:
  void await();

  boost::asio::posix::stream_descriptor socket_;
};

}  // namespace ddprun::agent::memory
