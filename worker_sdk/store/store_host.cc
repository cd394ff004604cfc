#include "worker_sdk/store/store_host.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "worker_sdk/base/retry.h"
#include "worker_sdk/base/socket_io.h"
#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

constexpr store::StoreClientsOptions kOptions{
    .connections_max = 8192, .unsent_bytes_max = 64 << 20, .limits = store::kRankStoreLimits};
constexpr int kBacklog = 1024;
constexpr int kPauseMs = 50;  // After a failure such as "too many open files".
constexpr std::chrono::milliseconds kPause(kPauseMs);
// After this time without a free descriptor, new connections are closed, so that their ranks
// notice.
constexpr std::chrono::milliseconds kTurnAwayAfter(2000);
constexpr const char* kHosting = "hosting the store";

SocketAddress any_ipv4(std::uint16_t port) {
  SocketAddress address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr.s_addr = htonl(INADDR_ANY);
  address.size = sizeof(in);
  return address;
}

SocketAddress any_ipv6(std::uint16_t port) {
  SocketAddress address;
  auto& in = reinterpret_cast<sockaddr_in6&>(address.storage);
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_addr = in6addr_any;
  address.size = sizeof(in);
  return address;
}

UniqueFd listen_at(const SocketAddress& address) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6 && !address.is_loopback()) {  // Accepts IPv4, too.
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(socket.get(), address.get(), address.size) != 0) return {};
  if (::listen(socket.get(), kBacklog) != 0) return {};
  return socket;
}

// Debian gives a host's own name the address 127.0.1.1, which no other host can reach.
bool leads_only_here(const std::string& host, const std::vector<SocketAddress>& addresses) {
  if (host == "localhost") return false;
  for (const SocketAddress& address : addresses) {
    if (!address.is_loopback() || address.host() == host) return false;
  }
  return true;
}

UniqueFd listen_for(const std::string& host, std::uint16_t port, Clock::time_point deadline) {
  const auto addresses = resolve(host, port, deadline);
  const bool everywhere = leads_only_here(host, addresses);
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    if (everywhere) break;
    UniqueFd socket = listen_at(address);
    if (socket) return socket;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRNOTAVAIL) {
    UniqueFd socket = listen_at(any_ipv6(port));
    if (socket) return socket;
    error = errno;
    if (error != EADDRINUSE) socket = listen_at(any_ipv4(port));  // A kernel without IPv6.
    if (socket) return socket;
    if (error != EADDRINUSE) error = errno;
  }
  throw refused({.operation = kHosting}, "cannot listen at " + host + ":" + std::to_string(port),
                error);
}

}  // namespace

StoreHost::StoreHost(const std::string& host, std::uint16_t port, Clock::time_point deadline)
    : listener_(listen_for(host, port, deadline)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) {
    throw refused({.operation = kHosting}, "eventfd", errno);
  }
  auto clients = store::StoreClients::make(kOptions, [](const std::string&) {});
  if (!clients) {
    throw Error(ErrorKind::system, {.operation = kHosting}, to_string(clients.error()));
  }
  clients_ = std::move(*clients);
  SocketAddress mine;
  mine.size = sizeof(mine.storage);
  ::getsockname(listener_.get(), mine.get(), &mine.size);
  port_ = mine.port();
  thread_ = start_thread("ddprun-store", {.operation = kHosting}, [this] { run(); });
}

StoreHost::~StoreHost() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void StoreHost::run() {
  for (;;) {
    // A connection that cannot be accepted stays readable, so a paused listener is left out.
    const bool paused = Clock::now() < paused_until_;
    std::array<pollfd, 3> entries{{{stop_.get(), POLLIN, 0},
                                   {clients_->descriptor(), POLLIN, 0},
                                   {paused ? -1 : listener_.get(), POLLIN, 0}}};
    // Waits until a client connects, one sends, or the host ends; needs no deadline.
    if (::poll(entries.data(), entries.size(), paused ? kPauseMs : -1) < 0) {
      if (errno != EINTR && !outlast("poll")) return;
      continue;
    }
    if (entries[0].revents) return;
    if (entries[1].revents) clients_->serve();
    if (entries[2].revents) accept_all();
  }
}

// Other hosts' users cannot be distinguished; of this host's users only our own and root may.
bool StoreHost::may_use(int connection) {
  const PeerUser user = users_.look_up(connection);
  return user != PeerUser::kOthers && user != PeerUser::kGone;
}

void StoreHost::accept_all() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return pause_unless_idle();
    reported_ = false;
    if (!may_use(socket.get())) continue;
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    clients_->take(std::move(socket), {});
  }
}

// After a failed accept. EAGAIN means that no connection waits; it and clients' errors need no
// pause.
void StoreHost::pause_unless_idle() {
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
  const bool no_descriptor = errno == EMFILE || errno == ENFILE;
  if (!reported_) short_since_ = Clock::now();
  complain("accept");
  if (no_descriptor && Clock::now() - short_since_ >= kTurnAwayAfter) {
    spare_.turn_away(listener_.get());
  }
  paused_until_ = Clock::now() + kPause;
}

// Waits a moment, as memory is short or there are more descriptors than the limit. False: the host
// must end.
bool StoreHost::outlast(const char* call) {
  complain(call);
  pollfd stop{stop_.get(), POLLIN, 0};
  if (::poll(&stop, 1, 0) > 0) return false;
  retry_until(Clock::now() + kPause, [] { return false; });
  return true;
}

// Once for each time that something is short.
void StoreHost::complain(const char* call) {
  if (std::exchange(reported_, true)) return;
  std::fprintf(stderr, "ddprun: the store of rank 0: %s: %s; retrying until this is over\n", call,
               std::strerror(errno));
}

}  // namespace ddprun::worker_sdk
