#include "worker_sdk/base/socket_io.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>

#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// How long a name may be unknown: names of pods appear a little after the pods.
constexpr milliseconds kUnknownNamePatience{3000};
// How long one address may take, so that an unreachable one does not use up the time of the others.
constexpr milliseconds kOneAddressPatience{3000};
// How long this process may lack a descriptor, or this machine memory, before that is an error.
constexpr milliseconds kShortagePatience{3000};

[[noreturn]] void throw_unreachable(const std::string& text) {
  throw Error(ErrorKind::unreachable, {}, text);
}

int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

// False at the deadline.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return true;  // The following call will report the error.
  }
}

struct Lookup {
  int error = 0;
  std::vector<SocketAddress> addresses;
};

Lookup look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Lookup result;
  result.error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (result.error != 0) return result;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* a = list; a; a = a->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
    result.addresses.push_back(address);
  }
  return result;
}

// The resolver has no deadline of its own; a thread that outlives ours finishes alone.
Lookup look_up_until(const std::string& host, std::uint16_t port, Clock::time_point deadline) {
  auto promise = std::make_shared<std::promise<Lookup>>();
  auto future = promise->get_future();
  const auto run = [promise, host, port] {
    promise->set_value(look_up(host, port, AI_ADDRCONFIG));
  };
  start_thread("ddprun-resolve", {.operation = "resolving \"" + host + "\""}, run).detach();
  if (future.wait_until(deadline) == std::future_status::ready) return future.get();
  return {.error = EAI_AGAIN, .addresses = {}};
}

// The error of a connection attempt; 0 if it succeeded.
int try_connect(const SocketAddress& address, Clock::time_point deadline, UniqueFd& socket) {
  socket =
      UniqueFd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  if (::connect(socket.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) {
    return errno;
  }
  if (!wait_for(socket.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  if (::getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

std::uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                   Clock::time_point deadline) {
  Lookup result = look_up(host, port, AI_NUMERICHOST);
  if (result.error == 0) return result.addresses;
  const auto give_up = std::min(deadline, Clock::now() + kUnknownNamePatience);
  retry_until(give_up, [&] {
    result = look_up_until(host, port, give_up);
    return result.error == 0;
  });
  if (result.error == 0) return result.addresses;
  throw_unreachable("cannot resolve the host name \"" + host +
                    "\": " + ::gai_strerror(result.error));
}

UniqueFd connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline,
                    const std::function<bool()>& give_up) {
  const std::vector<SocketAddress> addresses = resolve(host, port, deadline);
  UniqueFd socket;
  int error = 0;
  bool connected = false;
  const auto end_of_shortage = Clock::now() + kShortagePatience;
  retry_until(deadline, [&] {
    if (give_up && give_up()) return true;
    if (is_shortage(error) && Clock::now() >= end_of_shortage) return true;
    for (const SocketAddress& address : addresses) {
      error = try_connect(address, std::min(deadline, Clock::now() + kOneAddressPatience), socket);
      connected = error == 0;
      if (connected) return true;
    }
    return false;
  });
  if (!connected) {
    const std::string doing = "cannot connect to " + host + ":" + std::to_string(port);
    if (is_shortage(error)) throw refused({}, doing, error);
    throw_unreachable(doing + ": " + std::strerror(error));
  }
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

IoResult write_all(int socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, deadline)) return IoResult::kTimedOut;
    } else if (errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

IoResult read_exactly(int socket, char* bytes, std::size_t size, Clock::time_point deadline) {
  while (size > 0) {
    const ssize_t got = ::recv(socket, bytes, size, 0);
    if (got > 0) {
      bytes += got;
      size -= static_cast<std::size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      if (!wait_for(socket, POLLIN, deadline)) return IoResult::kTimedOut;
    } else if (got == 0 || errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

std::string local_address_towards(const std::string& host, Clock::time_point deadline) {
  constexpr std::uint16_t kAnyPort = 9;  // Connecting a datagram socket sends nothing.
  for (const SocketAddress& address : resolve(host, kAnyPort, deadline)) {
    const UniqueFd socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), address.get(), address.size) != 0) continue;
    SocketAddress mine;
    mine.size = sizeof(mine.storage);
    if (::getsockname(socket.get(), mine.get(), &mine.size) == 0) return mine.host();
  }
  return {};
}

}  // namespace ddprun::worker_sdk
