#pragma once
// One framed connection between an agent and the daemon, over TLS or plain TCP: bodies in, bodies
// out. It does not interpret the bodies. Both sides use it; async_connect (connect.h) and the
// Listener make them. All calls are made on the loop's thread.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/frames.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "rendezvous/net/channel.h"
#include "rendezvous/net/peer_kernel.h"

namespace ddprun::rendezvous {

struct LinkOptions {
  std::size_t unsent_bytes_max = 8 << 20;  // Above, the peer is not reading and the link is closed.
  std::size_t body_bytes_max = kFrameBytesMax;  // Of what the peer may send.
  Milliseconds close_timeout{2000};  // How long close() tries to get rid of what is queued.
  Milliseconds user_timeout{
      20'000};  // How long sent bytes may stay unacknowledged; 0: the kernel's choice.
};

// A connection that is no Link any more, and of no loop: what follows on it is no frames.
struct Released {
  UniqueFd fd;
  std::unique_ptr<Channel> channel;  // Over `fd`.
  std::string unread{};              // Has been read from it, behind the last frame.
  std::string unsent{};              // Is to be written to it before anything else.
  std::shared_ptr<void> slot{};      // As of Link::make().
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  struct Handlers {
    std::function<void(std::string body)> on_message;
    // Exactly once after start(), the last call of all. `code` is asio's eof if the peer closed the
    // link, operation_aborted if close() did.
    std::function<void(const Failure& why)> on_closed;
  };

  // `slot` is let go when the connection is closed: how a Listener counts.
  static std::shared_ptr<Link> make(Connected connection, LinkOptions options,
                                    std::shared_ptr<void> slot = nullptr);

  // Begins to read. Handlers are called from the loop, never from inside a call of start, send or
  // close, and keep alive what they capture until on_closed has returned. Call it once.
  void start(Handlers handlers);

  // Queues `body`, at most kFrameBytesMax long. What is sent in one turn of the loop leaves
  // together. Does nothing once the link is closed or closing.
  void send(std::string_view body);

  // Sends what is queued, then hangs up and waits for the peer to do so, all within close_timeout.
  // What arrives meanwhile is dropped. A link that is not closed here lives until its peer closes
  // it.
  void close();

  // Of an open link, also from inside on_message: gives the connection away. No handler is called
  // any more, and the link is of no further use.
  Released release();
  bool is_open() const { return state_ == State::kOpen; }

  std::optional<PeerKernel> peer_kernel();

  const std::string& peer_address() const { return peer_address_; }    // Numeric, without port.
  const std::string& local_address() const { return local_address_; }  // The same of this side.

 private:
  enum class State {
    kOpen,
    kClosing,  // By close(): flushing, then waiting for the peer's end of stream.
    kFailing,  // finish() is on its way.
    kClosed,   // Or released.
  };

  Link(Connected connection, LinkOptions options, std::shared_ptr<void> slot);

  void post(void (Link::*step)());
  void wait(boost::asio::ip::tcp::socket::wait_type what);
  void wait_for(StepStatus want);
  void read();
  bool deliver();
  void flush();
  void flush_soon();
  void fail_soon(Failure why);
  void finish(Failure why);
  void finish_as(const ChannelStep& step);

  Connected connection_;
  const LinkOptions options_;
  std::shared_ptr<void> slot_;
  const std::string peer_address_;
  const std::string local_address_;
  boost::asio::steady_timer close_timer_;
  Handlers handlers_;
  State state_ = State::kOpen;
  FrameReader frames_;
  std::string out_;
  std::size_t sent_ = 0;  // Of out_.
  bool reading_ = false;  // read() runs or will.
  bool flush_posted_ = false;
  bool wait_read_ = false, wait_write_ = false;
  bool read_wants_write_ = false;
  bool sending_closed_ = false;
};

}  // namespace ddprun::rendezvous
