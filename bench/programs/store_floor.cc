// The least that a server of one thread can do for a request: one epoll, a recv and a send of a
// fixed answer. It understands nothing; what it reaches is what the kernel leaves to any store.
//
//   bench_store_floor ANSWER_BYTES
//
// Prints its port; ends with its standard input. Started by bench/store.py.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int listen_on_loopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("listening");
    std::exit(1);
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return fd;
}

void watch(int epoll, int fd) {
  epoll_event event{EPOLLIN, {.fd = fd}};
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

void accept_all(int epoll, int listening) {
  for (;;) {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    watch(epoll, fd);
  }
}

void answer(int fd, const std::string& bytes) {
  std::array<char, 4096> request;
  if (::recv(fd, request.data(), request.size(), 0) > 0) {
    ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } else {
    ::close(fd);
  }
}

}  // namespace

int main(int, char** argv) {
  const std::string bytes(static_cast<std::size_t>(std::atoi(argv[1])), '\0');
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const int listening = listen_on_loopback();
  watch(epoll, listening);
  watch(epoll, STDIN_FILENO);
  std::array<epoll_event, 256> events;
  for (;;) {
    const int ready = ::epoll_wait(epoll, events.data(), events.size(), -1);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == STDIN_FILENO) return 0;
      if (fd == listening) {
        accept_all(epoll, listening);
      } else {
        answer(fd, bytes);
      }
    }
  }
}
