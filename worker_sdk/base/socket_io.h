#pragma once
// Blocking TCP with deadlines, on non-blocking sockets and poll(). Used by tcp_store, store_host
// and the choice of an interface.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/system/descriptors.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  bool is_loopback() const;
  std::string host() const;  // Numeric, without port.
  std::uint16_t port() const;
};

// All addresses of `host`. An unknown name is an error within seconds, not at the deadline. The
// Errors of this file are `unreachable` and name the host, or `system` if this process has no
// descriptor or thread left; the caller adds rank and operation.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                   Clock::time_point deadline);

// Tries the addresses in turn, repeatedly, until one accepts, the deadline has passed or `give_up`,
// if there is one, returns true.
UniqueFd connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline,
                    const std::function<bool()>& give_up = {});

enum class IoResult { kDone, kTimedOut, kClosed };  // kClosed: end of stream or any error.

IoResult write_all(int socket, std::string_view bytes, Clock::time_point deadline);
IoResult read_exactly(int socket, char* bytes, std::size_t size, Clock::time_point deadline);

// The address from which packets to `host` would leave; empty if none.
std::string local_address_towards(const std::string& host, Clock::time_point deadline);

}  // namespace ddprun::worker_sdk
