#include "launcher/doctor/tcp_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/text/words.h"
#include "launcher/plan/resolve_name.h"

namespace ddprun::doctor {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kPieces = 3;  // The best of them counts.

// Shared by both ends of a connection: the messages between them, and waiting with a deadline.
//
//   client -> hello(nonce)     server -> one byte, or closes the connection
//   client -> kBlockFollows and a block, again and again, then kEndOfPiece
//   server -> one byte once it has read all of that
constexpr std::size_t kHelloBytes = 48;
constexpr std::size_t kLinkBlockBytes = 256 * 1024;  // More than one packet of any size.
constexpr char kBlockFollows = 'b', kEndOfPiece = 'e', kServed = 's';

std::string hello(const std::string& nonce) {
  std::string text = "ddprun-doctor " + nonce;
  text.resize(kHelloBytes, ' ');
  return text;
}

// The functions below return false or an empty text if the peer has gone, or `end` has passed.
// Sockets are non-blocking.
bool wait_for_socket(const UniqueFd& socket, short events, TimePoint end) {
  while (Clock::now() < end) {
    pollfd ready{socket.get(), events, 0};
    const int count = poll_until({&ready, 1}, end);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
  return false;
}

bool send_all(const UniqueFd& socket, std::string_view bytes, TimePoint end) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for_socket(socket, POLLOUT, end)) return false;
  }
  return true;
}

std::string receive_exactly(const UniqueFd& socket, std::size_t size, TimePoint end) {
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::recv(socket.get(), bytes.data() + have, size - have, 0);
    if (n > 0) have += static_cast<std::size_t>(n);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n == 0 || errno != EAGAIN || !wait_for_socket(socket, POLLIN, end)) return "";
  }
  return bytes;
}

double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string reason(int error) {
  if (error == ECONNREFUSED) return "refused";
  if (error == ETIMEDOUT || error == EAGAIN) return "no answer";
  if (error == EHOSTUNREACH || error == ENETUNREACH) return "no route";
  if (error == EACCES || error == EPERM) return "forbidden";
  return std::strerror(error);
}

struct Target {
  sockaddr_storage address{};
  socklen_t size = 0;
};

std::optional<Target> target_of(const Address& to, Milliseconds limit) {
  std::string host = to.host;
  if (!is_numeric(host)) {
    const auto found = launcher::resolve_name(host, limit);
    if (found.empty()) return std::nullopt;
    host = found.front();
  }
  Target target;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&target.address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&target.address);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(to.port);
    target.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(to.port);
    target.size = sizeof *v6;
  }
  return target.size > 0 ? std::optional(target) : std::nullopt;
}

// 0, or errno.
int connect_within(const UniqueFd& socket, const Target& target, TimePoint end) {
  const auto* address = reinterpret_cast<const sockaddr*>(&target.address);
  if (::connect(socket.get(), address, target.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for_socket(socket, POLLOUT, end)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string own_address(const UniqueFd& socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[INET6_ADDRSTRLEN] = {};
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return "";
  const void* bytes =
      own.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr)
          : &reinterpret_cast<sockaddr_in*>(&own)->sin_addr;
  ::inet_ntop(own.ss_family, bytes, text, sizeof text);
  return text;
}

void count_segments(const UniqueFd& socket, LinkMeasurement& link) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  link.segments = info.tcpi_segs_out;
  link.segments_again = info.tcpi_total_retrans;
}

// Sends blocks for `duration`, at least one, and waits until the last of them is acknowledged by
// the server. False: not within the limit.
bool send_piece(const UniqueFd& socket, Milliseconds duration, TimePoint end,
                LinkMeasurement& link) {
  static const std::string kBlock(kLinkBlockBytes, 'x');
  const TimePoint began = Clock::now();
  const TimePoint stop = began + duration;
  std::int64_t sent = 0;
  do {
    const bool last = Clock::now() >= stop;
    if (!send_all(socket, last ? std::string(1, kEndOfPiece) : std::string(1, kBlockFollows),
                  end)) {
      return false;
    }
    if (last) break;
    if (!send_all(socket, kBlock, end)) return false;
    sent += static_cast<std::int64_t>(kBlock.size());
  } while (true);
  if (receive_exactly(socket, 1, end).empty()) return false;
  const double rate = static_cast<double>(sent) / seconds_since(began) / 1e9;
  link.gb_s = std::max(link.gb_s, rate);
  return true;
}

bool exchange(const UniqueFd& socket, const std::string& nonce, const LinkRequest& request,
              TimePoint end, LinkMeasurement& link) {
  if (!send_all(socket, hello(nonce), end)) return false;
  if (receive_exactly(socket, 1, end).empty()) return false;
  const int pieces = request.send_for.count() > 0 ? kPieces : 1;
  for (int piece = 0; piece < pieces; ++piece) {
    const Milliseconds duration = std::max<Milliseconds>(request.send_for / pieces, 1ms);
    if (!send_piece(socket, duration, end, link)) return false;
  }
  return true;
}

}  // namespace

LinkMeasurement measure_link(const Address& to, const std::string& nonce,
                             const LinkRequest& request) {
  LinkMeasurement link;
  const TimePoint end = Clock::now() + request.limit;
  const auto target = target_of(to, request.limit);
  if (!target) {
    link.error = "name unknown";
    return link;
  }
  const UniqueFd socket(
      ::socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    link.error = reason(errno);
    return link;
  }
  const TimePoint began = Clock::now();
  if (const int error = connect_within(socket, *target, end); error != 0) {
    link.error = reason(error);
    return link;
  }
  link.connect_ms = 1000 * seconds_since(began);
  link.own_address = own_address(socket);
  if (!exchange(socket, nonce, request, end, link)) {
    link.error = "connects, but data does not arrive";
  }
  count_segments(socket, link);
  return link;
}

// The serving end of a measured connection.

namespace {

constexpr Milliseconds kClientLimit = 20s;
constexpr int kBacklog = 1'024;

// Each client has a process: several nodes measure at once.
void serve_client(const UniqueFd& client, const std::string& nonce) {
  const TimePoint end = Clock::now() + kClientLimit;
  const std::string served(1, kServed);
  if (receive_exactly(client, kHelloBytes, end) != hello(nonce)) return;
  if (!send_all(client, served, end)) return;
  for (;;) {
    const std::string word = receive_exactly(client, 1, end);
    if (word.empty()) return;
    if (word.front() == kEndOfPiece) {
      if (!send_all(client, served, end)) return;
    } else if (receive_exactly(client, kLinkBlockBytes, end).empty()) {
      return;
    }
  }
}

// If descriptors or memory are short, a waiting client keeps poll() from waiting: pauses instead.
void pause_if_short(int error) {
  constexpr int kPauseMs = 50;
  const bool is_short = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  if (is_short) ::poll(nullptr, 0, kPauseMs);
}

int serve(const UniqueFd& listening, const std::string& nonce) {
  ::signal(SIGCHLD, SIG_IGN);  // Clients' processes are reaped by the kernel.
  for (;;) {
    pollfd ready{listening.get(), POLLIN, 0};
    if (poll_until({&ready, 1}, std::nullopt) < 0 && errno != EINTR) return EXIT_FAILURE;
    UniqueFd client(::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) {
      pause_if_short(errno);
      continue;
    }
    const pid_t pid = ::fork();
    if (pid < 0) serve_client(client, nonce);  // Other clients wait until then.
    if (pid != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_client(client, nonce);
    ::_exit(0);
  }
}

}  // namespace

Result<UniqueFd> listen_on(std::uint16_t port) {
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) continue;  // A kernel without IPv6.
    const int yes = 1, no = 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    const bool is_v6 = family == AF_INET6;
    const auto* address =
        is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
    const socklen_t size = is_v6 ? sizeof v6 : sizeof v4;
    if (::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), kBacklog) == 0) {
      return socket;
    }
    if (errno == EADDRINUSE) break;
  }
  return errno_failure("port " + std::to_string(port));
}

std::uint16_t port_of(const UniqueFd& listening) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&own), &size);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
}

Result<LinkServer> LinkServer::start(std::uint16_t port, const std::string& nonce) {
  const auto listening = listen_on(port);
  if (!listening) return listening.error();
  const std::uint16_t bound = port_of(*listening);
  auto process = fork_function([&] { return serve(*listening, nonce); });
  if (!process) return process.error();
  return LinkServer(std::move(*process), bound);
}

LinkServer::~LinkServer() {
  if (!process_.runs()) return;
  kill(process_);
  (void)reap_within(process_, 2s);
}

}  // namespace ddprun::doctor
