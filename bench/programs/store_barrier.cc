// One barrier of N clients, each with a connection of its own, in one thread: all connect at once,
// arrive, and wait until the last one has released them. The same code for every contestant.
//
//   bench_store_barrier PROTOCOL PORT CLIENTS NAME [CPU]
//
// Prints milliseconds from the first connect until all are connected, and until all are released.
// Called by bench/barrier.py.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "bench/programs/barrier_messages.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"

namespace ddprun::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPatienceMs = 20'000;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

class Client {
 public:
  enum class Stage { kConnecting, kGreeting, kArriving, kWaiting, kReleased };

  Client(std::uint16_t port, BarrierMessages messages)
      : messages_(std::move(messages)),
        fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const int refused = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    if (refused != 0 && errno != EINPROGRESS) die("connecting");
  }

  int fd() const { return fd_.get(); }
  Stage stage() const { return stage_; }

  void connected() {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) die("connecting");
    if (messages_.hello.empty()) return send(messages_.arrive, Stage::kArriving);
    send(messages_.hello, Stage::kGreeting);
  }

  void receive(int clients) {
    std::array<char, 4096> part;
    const ssize_t got = ::recv(fd_.get(), part.data(), part.size(), 0);
    if (got <= 0) die("receiving");
    reply_.append(part.data(), static_cast<std::size_t>(got));
    if (stage_ == Stage::kGreeting && reply_.size() >= messages_.hello_reply_bytes) {
      send(messages_.arrive, Stage::kArriving);
    } else if (stage_ == Stage::kArriving) {
      const std::optional<long> count = messages_.arrived(reply_);
      if (count)
        send(*count == clients ? messages_.release_and_wait : messages_.wait, Stage::kWaiting);
    } else if (stage_ == Stage::kWaiting && messages_.released(reply_)) {
      stage_ = Stage::kReleased;
    }
  }

 private:
  void send(const std::string& bytes, Stage next) {
    reply_.clear();
    stage_ = next;
    if (::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      die("sending");
    }
  }

  const BarrierMessages messages_;
  UniqueFd fd_;
  Stage stage_ = Stage::kConnecting;
  std::string reply_;
};

struct Figures {
  double connected_ms = 0, released_ms = 0;
};

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

Figures pass(std::uint16_t port, std::deque<BarrierMessages> scripts) {
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const int count = static_cast<int>(scripts.size());
  std::deque<Client> clients;
  const auto begin = Clock::now();
  for (BarrierMessages& messages : scripts) {
    Client& client = clients.emplace_back(port, std::move(messages));
    epoll_event event{EPOLLOUT, {.ptr = &client}};
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, client.fd(), &event);
  }
  Figures figures;
  std::array<epoll_event, 1024> events;
  for (int connected = 0, released = 0; released < count;) {
    const int ready = ::epoll_wait(epoll.get(), events.data(), events.size(), kPatienceMs);
    if (ready <= 0) die("waiting");
    for (int i = 0; i < ready; ++i) {
      Client& client = *static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (client.stage() != Client::Stage::kConnecting) {
        client.receive(count);
        released += client.stage() == Client::Stage::kReleased ? 1 : 0;
        continue;
      }
      client.connected();
      epoll_event event{EPOLLIN, {.ptr = &client}};
      ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, client.fd(), &event);
      if (++connected == count) figures.connected_ms = ms_since(begin);
    }
  }
  figures.released_ms = ms_since(begin);
  return figures;
}

int run(char** argv, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (cpu >= 0) ::sched_setaffinity(0, sizeof set, &set);
  raise_soft_limits();
  std::deque<BarrierMessages> scripts;
  for (int i = 0; i < std::atoi(argv[3]); ++i) {
    scripts.push_back(barrier_messages(argv[1], std::string("/") + argv[4], i));
  }
  const Figures figures = pass(static_cast<std::uint16_t>(std::atoi(argv[2])), std::move(scripts));
  std::printf("%.2f %.2f\n", figures.connected_ms, figures.released_ms);
  return 0;
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s old|new|redis|etcd PORT CLIENTS NAME [CPU]\n", argv[0]);
    return 2;
  }
  return ddprun::bench::run(argv, argc > 5 ? std::atoi(argv[5]) : -1);
}
