#pragma once
// One end's way into a relayed stream (rendezvous/protocol/wire_request.h): a connection to the
// daemon that becomes the stream. Used by memory servers, which dial, and by agents, which meet.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "common/error.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/protocol/wire_request.h"

namespace ddprun::rendezvous {

// Of a Failure: the daemon has refused a stream that it may grant later.
inline const std::error_code kDialAgain =
    std::make_error_code(std::errc::resource_unavailable_try_again);

// `daemon`: where it listens, and the token; its timeout is for the stream as a whole. Failures are
// those of async_connect(), and with the daemon's sentence kNotFound or kDialAgain. The handler
// is called once, from the loop, unless the returned handle is destroyed before; destroy it before
// the io_context.
std::shared_ptr<void> async_relay(boost::asio::io_context& io, ConnectOptions daemon,
                                  const RelayRequest& request,
                                  std::function<void(Result<Released>)> handler);

// The same without a handle: it goes on until it has called the handler, or its io_context ends.
void relay(boost::asio::io_context& io, ConnectOptions daemon, const RelayRequest& request,
           std::function<void(Result<Released>)> handler);

// As async_relay(), but a Link with whatever listens at the other end of the stream, under TLS of
// its own: the daemon carries what it cannot read.
std::shared_ptr<void> async_connect_relayed(
    boost::asio::io_context& io, const ConnectOptions& daemon, const Dial& dial,
    std::function<void(Result<std::shared_ptr<Link>>)> handler);

}  // namespace ddprun::rendezvous
