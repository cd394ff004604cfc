#pragma once
// Takes new connections off a listening socket, a bounded number a turn, and goes on when the
// process has run out of descriptors for a while. Used by the StoreServer and the Listener.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

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

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  OnSocket on_socket_;
  bool said_ = false;
};

}  // namespace ddprun::rendezvous
