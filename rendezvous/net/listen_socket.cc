#include "rendezvous/net/listen_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>

#include "common/system/port_owner.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

UniqueFd new_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

std::string describe(const std::string& address, std::uint16_t port) {
  std::string text = "listening on port " + std::to_string(port);
  if (!address.empty()) text += " of " + address;
  return text;
}

Failure bind_failure(const std::string& address, std::uint16_t port) {
  Failure failure = errno_failure(describe(address, port));
  if (failure.code.value() == EADDRINUSE) {
    const std::string owner = port_owner(port);
    if (!owner.empty()) failure.context += ", which " + owner + " holds";
  }
  return failure;
}

Result<UniqueFd> listen_on(const tcp::endpoint& endpoint, const std::string& address) {
  UniqueFd fd = new_socket(endpoint.protocol().family());
  if (!fd) return errno_failure(describe(address, endpoint.port()));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool every_address = address.empty() || endpoint.address().is_unspecified();
  if (endpoint.address().is_v6()) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, !every_address);
  if (::bind(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return bind_failure(address, endpoint.port());
  }
  return fd;
}

using NameCall = int(int, sockaddr*, socklen_t*);

tcp::endpoint endpoint_of(int fd, NameCall* call) {
  tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (call(fd, endpoint.data(), &size) != 0) return {};
  endpoint.resize(size);
  return endpoint;
}

boost::asio::ip::address plain(const boost::asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
}

// What accept() reports about a connection that died while it waited, or about this process for a
// moment.
bool passing(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == ENETDOWN ||
         error == EHOSTDOWN || error == EHOSTUNREACH || error == ENETUNREACH || error == ENONET;
}

}  // namespace

Result<UniqueFd> listen_socket(const std::string& address, std::uint16_t port) {
  if (address.empty()) {
    Result<UniqueFd> both = listen_on({boost::asio::ip::address_v6::any(), port}, address);
    if (both || both.error().code.value() != EAFNOSUPPORT) return both;
    return listen_on({boost::asio::ip::address_v4::any(), port}, address);
  }
  boost::system::error_code malformed;
  const auto numeric = boost::asio::ip::make_address(address, malformed);
  if (malformed) return Failure{Errc::kBadOption, "'" + address + "' is not a numeric address"};
  return listen_on({numeric, port}, address);
}

Result<std::optional<AcceptedSocket>> accept_socket(int listening_fd) {
  for (;;) {
    tcp::endpoint peer;
    auto size = static_cast<socklen_t>(peer.capacity());
    UniqueFd fd(::accept4(listening_fd, peer.data(), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      const auto local = local_address(fd.get());
      return AcceptedSocket{std::move(fd), plain(peer.address()), local};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<AcceptedSocket>();
    if (!passing(errno)) return errno_failure("accepting a connection");
  }
}

Result<UniqueFd> client_socket(const boost::asio::ip::address& towards) {
  UniqueFd fd = new_socket(towards.is_v6() ? AF_INET6 : AF_INET);
  if (!fd) return errno_failure("making a socket");
  return fd;
}

void tune_socket(int fd, Milliseconds user_timeout) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (user_timeout.count() > 0) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count()));
  }
}

// If "reno" is refused, nothing is lost.
void spare_congestion_control(int fd) {
  constexpr std::string_view kPlain = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

std::uint16_t local_port(int fd) { return endpoint_of(fd, ::getsockname).port(); }
boost::asio::ip::address local_address(int fd) {
  return plain(endpoint_of(fd, ::getsockname).address());
}
boost::asio::ip::address peer_address(int fd) {
  return plain(endpoint_of(fd, ::getpeername).address());
}

}  // namespace ddprun::rendezvous
