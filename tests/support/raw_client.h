#pragma once
// A TCP connection to this machine that sends and receives exactly what a test gives it, without
// Asio.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "common/system/descriptors.h"

namespace ddprun::test {

class RawClient {
 public:
  // `from` is the source address: any of 127.0.0.0/8 passes for another host.
  explicit RawClient(std::uint16_t port, const char* to = "127.0.0.1", const char* from = nullptr)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (from) {
      const sockaddr_in source = address(from, 0);
      ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&source), sizeof source);
    }
    const sockaddr_in target = address(to, port);
    connected =
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0;
  }

  // False once the peer has gone, or takes no more for now and `wait` is false.
  bool send(std::string_view bytes, bool wait = true) const {
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Adds what has arrived to `received`, without waiting.
  void poll() {
    std::array<char, 65536> part;
    for (;;) {
      const ssize_t got = ::recv(fd_.get(), part.data(), part.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return;
      closed = got <= 0;
      if (closed) return;
      received.append(part.data(), static_cast<std::size_t>(got));
    }
  }

  int fd() const { return fd_.get(); }

  bool connected = false;
  bool closed = false;  // By the peer, as poll() saw.
  std::string received;

 private:
  static sockaddr_in address(const char* text, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    ::inet_pton(AF_INET, text, &out.sin_addr);
    return out;
  }

  UniqueFd fd_;
};

}  // namespace ddprun::test
