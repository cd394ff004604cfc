#pragma once
// Takes new connections off a listening socket, a bounded number a turn. When the process has run
// out of descriptors, it retries for a while; after that it closes the connections that wait, so
// that their other ends do not wait for an answer until their deadline. Used by the StoreServer and
// the Listener.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "common/system/descriptors.h"
#include "rendezvous/net/listen_socket.h"

namespace ddprun::rendezvous {

class AcceptLoop : public std::enable_shared_from_this<AcceptLoop> {
 public:
  using OnSocket = std::function<void(AcceptedSocket)>;

  // Begins at once; `on_socket` is called from the loop until stop(), never from inside start().
  static std::shared_ptr<AcceptLoop> start(boost::asio::io_context& io, UniqueFd listening,
                                           OnSocket on_socket);

  // Frees the port. on_socket is not called any more.
  void stop();

 private:
  AcceptLoop(boost::asio::io_context& io, OnSocket on_socket)
      : acceptor_(io), pause_(io), on_socket_(std::move(on_socket)) {}

  void wait();
  void take();
  void pause();
  void outlast(const Failure& failure);

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  OnSocket on_socket_;
  bool said_ = false;    // That something is short.
  bool closes_ = false;  // It has been short for long.
  std::chrono::steady_clock::time_point short_since_{};
  SpareDescriptor spare_;
};

}  // namespace ddprun::rendezvous
