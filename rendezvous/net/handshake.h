#pragma once
// Carries a new connection's handshake through, within a deadline. Used by async_connect and the
// Listener.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/net/channel.h"

namespace ddprun::rendezvous {

// A connection whose peer has proved what it had to.
struct Connected {
  boost::asio::ip::tcp::socket socket;
  std::unique_ptr<Channel> channel;  // Over `socket`.
};

class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  using OnDone = std::function<void(Result<Connected>)>;

  // `on_done` is called once, from the loop, unless cancel() comes first. A peer that says nothing
  // fails with kPeerSilent, one that hangs up with asio's eof.
  // With `on_ready` the handshake begins only when its peer has said what it says first, whole; it
  // then calls that and waits for proceed().
  static std::shared_ptr<Handshake> start(Connected connection, Milliseconds timeout,
                                          OnDone on_done, std::function<void()> on_ready = nullptr);

  void proceed();

  // Closes the connection; on_done is not called.
  void cancel();

 private:
  Handshake(Connected connection, OnDone on_done, std::function<void()> on_ready)
      : connection_(std::move(connection)),
        timer_(connection_.socket.get_executor()),
        on_done_(std::move(on_done)),
        on_ready_(std::move(on_ready)) {}

  void listen();
  void step();
  void wait(boost::asio::ip::tcp::socket::wait_type what);
  void finish(Result<Connected> result);

  Connected connection_;
  boost::asio::steady_timer timer_;
  OnDone on_done_;
  std::function<void()> on_ready_;
  bool over_ = false;
};

}  // namespace ddprun::rendezvous
