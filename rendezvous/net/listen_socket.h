#pragma once
// TCP sockets as ddprun wants them: close-on-exec (a worker must not inherit them), non-blocking,
// without Nagle's delay. Asio's own calls leave the first out. Used by the store, the control link
// and HTTP.

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::rendezvous {

// Listens on a numeric address; an empty one means every address of this machine, of both families
// where IPv6 exists. Port 0 lets the kernel choose. If the port is taken, the Failure says by whom.
Result<UniqueFd> listen_socket(const std::string& address, std::uint16_t port);

struct AcceptedSocket {
  UniqueFd fd;
  boost::asio::ip::address peer;  // IPv4 as such, also where it arrived on an IPv6 socket.
  boost::asio::ip::address local;
};

// One waiting connection; nothing if none is waiting.
Result<std::optional<AcceptedSocket>> accept_socket(int listening_fd);

// A socket for connecting, not connected yet.
Result<UniqueFd> client_socket(const boost::asio::ip::address& towards);

// TCP_NODELAY, keepalive and, if not zero, how long sent bytes may stay without acknowledgement.
void tune_socket(int fd, Milliseconds user_timeout);

// For a connection within one host, where there is no congestion: a rate-based control such as BBR,
// which some distributions choose for all, only costs time at each send.
void spare_congestion_control(int fd);

std::uint16_t local_port(int fd);
boost::asio::ip::address local_address(int fd);
boost::asio::ip::address peer_address(int fd);

}  // namespace ddprun::rendezvous
