#pragma once
// Bytes to and from one peer over a connected non-blocking socket, plain or under TLS: one step at
// a time, never waiting. The Link, the Connector and the Listener wait on the loop for what a
// step's status names.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "rendezvous/net/tls_psk.h"

namespace ddprun::rendezvous {

enum class StepStatus {
  kDone,       // `bytes` were moved, or the handshake is complete.
  kWantRead,   // Try again once the socket can be read.
  kWantWrite,  // Try again once the socket can be written.
  kClosed,     // The peer has closed its side.
  kFailed,     // `failure` has the reason; the channel is of no further use.
};

struct ChannelStep {
  StepStatus status;
  std::size_t bytes = 0;
  Failure failure = {};
  bool more = true;  // After a read: there may be more to read at once.
};

class Channel {
 public:
  virtual ~Channel() = default;

  // For a server: kDone once the client's first message is here in full, as far as can be seen
  // without reading it. Costs next to nothing, unlike handshake(), even for a client without the
  // token.
  virtual ChannelStep first_message() = 0;
  // To be repeated until kDone, before anything else.
  virtual ChannelStep handshake() = 0;
  virtual ChannelStep read(char* into, std::size_t size) = 0;
  virtual ChannelStep write(
      std::string_view bytes) = 0;   // After a kWant, again with the same bytes or more.
  virtual void close_sending() = 0;  // Notifies the peer that no more will be written.
};

// `fd` is borrowed and must outlive the channel. A failed handshake of a TLS client has code
// kBadToken if the peer speaks TLS but does not know our token, kBadMessage if it speaks something
// else.
std::unique_ptr<Channel> make_plain_client(int fd);
std::unique_ptr<Channel> make_plain_server(int fd);
std::unique_ptr<Channel> make_tls_channel(int fd, const TlsContext& context, TlsRole role);

// Carries a new connection's handshake through, within a deadline. Used by async_connect and the
// Listener.

// A connection after its handshake, with an authenticated peer.
struct Connected {
  boost::asio::ip::tcp::socket socket;
  std::unique_ptr<Channel> channel;  // Over `socket`.
};

class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  using OnDone = std::function<void(Result<Connected>)>;

  // `on_done` is called once, from the loop, unless cancel() comes first. A peer that sends nothing
  // fails with kPeerSilent, one that hangs up with asio's eof. With `on_ready` the handshake does
  // not begin before the peer's first message is here in full; then it calls `on_ready` and waits
  // for proceed().
  static std::shared_ptr<Handshake> start(Connected connection, Milliseconds timeout,
                                          OnDone on_done, std::function<void()> on_ready = nullptr);

  void proceed();

  // Instead of proceed(): whether the client begins by one of the TCPStore's requests, and the
  // socket, of which nothing has been read. After release() on_done is not called.
  bool begins_as_store_client();
  UniqueFd release();

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
