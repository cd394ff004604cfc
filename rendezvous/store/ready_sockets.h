#pragma once
// Says which of many sockets can be read or written, for a server of many small requests. Asio
// makes a system call to wait for a socket each time it is waited for; here a socket is named once,
// and all that are ready are learnt of together. The set itself is one descriptor of the
// io_context. Does not own the sockets. Used by the StoreServer.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/error.h"

namespace ddprun::rendezvous {

class ReadySockets : public std::enable_shared_from_this<ReadySockets> {
 public:
  // What a socket is waited for, or has come to.
  enum Events : std::uint32_t { kNothing = 0, kReadable = 1, kWritable = 2 };

  // An error or a hangup counts as both. May be called for a socket that has just been closed.
  using OnReady = std::function<void(int fd, std::uint32_t events)>;

  static Result<std::shared_ptr<ReadySockets>> start(boost::asio::io_context& io, OnReady on_ready);

  // From now on, until the socket is closed (all its descriptors, that is).
  Result<void> add(int fd, std::uint32_t events);
  void change(int fd, std::uint32_t events);

  // on_ready is not called any more.
  void stop();

 private:
  ReadySockets(boost::asio::io_context& io, int epoll_fd, OnReady on_ready)
      : epoll_(io, epoll_fd), on_ready_(std::move(on_ready)) {}

  void wait();
  void tell();
  bool tell_once();
  bool control(int operation, int fd, std::uint32_t events);

  boost::asio::posix::stream_descriptor epoll_;
  OnReady on_ready_;
};

}  // namespace ddprun::rendezvous
