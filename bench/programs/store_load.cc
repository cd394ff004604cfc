// N clients of a store in one thread, each with one request under way: how many operations a second
// and how long each takes. The same code for every contestant, so that what differs is the server.
//
//   bench_store_load PROTOCOL OPERATION PORT CLIENTS SECONDS [CPU]
//
// Prints "connected" when it begins, and then: operations a second, median and 99th percentile in
// microseconds, operations in all (also those of the first fifth, which is not measured). Called by
// bench/store.py.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>

#include "bench/programs/store_script.h"
#include "common/system/descriptors.h"
#include "common/system/limits.h"

namespace ddprun::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kValueBytes = 64;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

class Client {
 public:
  Client(std::uint16_t port, Scripts scripts)
      : scripts_(std::move(scripts)), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      die("connecting");
    }
    carry_out(scripts_.hello);
    carry_out(scripts_.begin);
  }

  int fd() const { return fd_.get(); }
  Clock::time_point begun() const { return begun_; }

  void begin_turn() {
    begun_ = Clock::now();
    step_ = 0;
    send(scripts_.turn[0]);
  }

  // Takes what has come; true once the turn is over.
  bool receive() {
    if (!step_done(scripts_.turn[step_])) return false;
    if (++step_ == scripts_.turn.size()) return true;
    send(scripts_.turn[step_]);
    return false;
  }

 private:
  void send(const Step& step) {
    received_ = 0;
    for (const std::string& bytes : step.sends) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent != static_cast<ssize_t>(bytes.size())) die("sending");
    }
  }

  bool step_done(const Step& step) {
    std::array<char, 4096> part;
    const ssize_t got = ::recv(fd_.get(), part.data(), part.size(), 0);
    if (got <= 0) die("receiving");
    received_ += static_cast<std::size_t>(got);
    if (step.reply_bytes > 0) return received_ >= step.reply_bytes;
    return part[static_cast<std::size_t>(got) - 1] == '\n';
  }

  void carry_out(const Script& script) {
    for (const Step& step : script) {
      send(step);
      while (!step_done(step)) {
      }
    }
  }

  const Scripts scripts_;
  UniqueFd fd_;
  std::size_t step_ = 0;
  std::size_t received_ = 0;  // Of this step's reply.
  Clock::time_point begun_;
};

struct Figures {
  std::vector<std::uint32_t> nanoseconds;
  std::size_t operations = 0;
  double seconds = 0;
};

// A client may have begun after the end.
std::uint32_t nanoseconds(Clock::duration time) {
  constexpr auto kMax = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, kMax));
}

Figures load(std::deque<Client>& clients, std::chrono::duration<double> length) {
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (Client& client : clients) {
    epoll_event event{EPOLLIN, {.ptr = &client}};
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, client.fd(), &event);
  }
  const auto begin = Clock::now();
  const auto measured = begin + std::chrono::duration_cast<Clock::duration>(length / 5);
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(length);
  Figures figures;
  figures.nanoseconds.reserve(4 << 20);
  for (Client& client : clients) client.begin_turn();
  std::array<epoll_event, 1024> events;
  for (auto now = begin; now < end;) {
    const int ready = ::epoll_wait(epoll.get(), events.data(), events.size(), 10'000);
    if (ready <= 0) die("waiting for answers");
    for (int i = 0; i < ready; ++i) {
      Client& client = *static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (!client.receive()) continue;
      ++figures.operations;
      now = Clock::now();
      if (now >= measured) {
        figures.nanoseconds.push_back(nanoseconds(now - client.begun()));
      }
      client.begin_turn();
    }
  }
  // A client that still waits counts with the time that it has waited, or starving would not show.
  for (const Client& client : clients) {
    figures.nanoseconds.push_back(nanoseconds(end - client.begun()));
  }
  figures.seconds = std::chrono::duration<double>(end - measured).count();
  return figures;
}

double percentile(std::vector<std::uint32_t>& values, double fraction) {
  const auto rank = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<std::size_t>(rank)] / 1e3;
}

int run(char** argv, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (cpu >= 0) ::sched_setaffinity(0, sizeof set, &set);
  raise_soft_limits();
  std::deque<Client> clients;
  for (int i = 0; i < std::atoi(argv[4]); ++i) {
    clients.emplace_back(static_cast<std::uint16_t>(std::atoi(argv[3])),
                         scripts_of(argv[1], argv[2], i, kValueBytes));
  }
  std::puts("connected");
  std::fflush(stdout);
  Figures figures = load(clients, std::chrono::duration<double>(std::atof(argv[5])));
  if (figures.nanoseconds.empty()) return 1;
  std::printf("%.0f %.1f %.1f %zu\n",
              static_cast<double>(figures.nanoseconds.size()) / figures.seconds,
              percentile(figures.nanoseconds, 0.5), percentile(figures.nanoseconds, 0.99),
              figures.operations);
  return 0;
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s old|new|redis set|get|add|wait PORT CLIENTS SECONDS [CPU]\n",
                 argv[0]);
    return 2;
  }
  return ddprun::bench::run(argv, argc > 6 ? std::atoi(argv[6]) : -1);
}
