#pragma once
// Makes a Link to a daemon. Used by the agent and by ddprunctl.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/net/link.h"

namespace ddprun::rendezvous {

// Host names to addresses without blocking the loop. Used by async_connect.

using Addresses = std::vector<boost::asio::ip::address>;

// Hands the addresses of `host`, a name or a numeric address, to the handler from `executor`'s
// loop. Let go of the returned handle to cancel; do so before the loop's io_context dies. There is
// no deadline here: the C library's resolver cannot be stopped, so its thread is left to end by
// itself.
std::shared_ptr<void> async_resolve(const boost::asio::any_io_executor& executor,
                                    const std::string& host,
                                    std::function<void(Result<Addresses>)> handler);

struct ConnectOptions {
  std::string host = {};  // A name or a numeric address.
  std::uint16_t port = 0;
  std::string token = {};      // Empty: no TLS.
  Milliseconds timeout{5000};  // For everything: resolving, connecting, the handshake.
  LinkOptions link = {};
};

// One attempt: resolves the host, tries its addresses until one accepts, each beside those before
// it that have not answered within 0.3 s, and goes through the handshake. The handler is called
// once, from the loop, unless the returned handle is destroyed before; destroy it before the
// io_context. Failures to distinguish by code:
//   kNotFound                the name cannot be resolved
//   asio's timed_out         no host takes the connection
//   kPeerSilent              it is taken, but no answer comes
//   kBadToken                the daemon has another token (or none: without TLS it shows on the
//   Link) kBadMessage, asio's eof  the peer is not a ddprun daemon, or is closing system errors
//   connection refused, no route, …
std::shared_ptr<void> async_connect(boost::asio::io_context& io, ConnectOptions options,
                                    std::function<void(Result<std::shared_ptr<Link>>)> handler);

}  // namespace ddprun::rendezvous
