#include "worker_sdk/gloo/gloo_sockets.h"

#include <fcntl.h>
#include <gloo/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <map>

#include "worker_sdk/base/folder.h"

namespace ddprun::worker_sdk {
namespace {

// As Gloo words it in its messages, which only Gloo itself does reliably: it has the port's bytes
// swapped. Empty if there is none. `get`: getsockname or getpeername.
std::string address_of(int socket, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return {};
  return gloo::transport::tcp::Address(reinterpret_cast<sockaddr*>(&address), size).str();
}

std::vector<int> descriptors() {
  std::vector<int> found;
  for (const std::string& name : names_in("/proc/self/fd").names) {
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    found.push_back(fd);
  }
  return found;
}

// Duplicates those descriptors of this process that are connected and have one of the local
// addresses.
void duplicate_sockets(std::map<std::string, UniqueFd>& by_local_address) {
  for (const int fd : descriptors()) {
    const auto wanted = by_local_address.find(address_of(fd, ::getsockname));
    if (wanted == by_local_address.end() || address_of(fd, ::getpeername).empty()) continue;
    wanted->second = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
}

// Both ends without their ports.
bool within_one_host(int socket) {
  const auto host_of = [](const std::string& address) {
    return address.substr(0, address.rfind(':'));
  };
  const std::string mine = host_of(address_of(socket, ::getsockname));
  return !mine.empty() && mine == host_of(address_of(socket, ::getpeername));
}

// Congestion control is for networks. Within one host a rate-based one such as BBR, which some
// distributions choose for all, only costs bandwidth. If "reno" is refused, nothing is lost.
void tune(int socket) {
  if (within_one_host(socket)) ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

}  // namespace

std::vector<GlooConnection> find_connections(gloo::Context& context) {
  const auto local_address = [&](int r) { return context.getPair(r)->address().str(); };
  std::map<std::string, UniqueFd> sockets;
  for (int r = 0; r < context.size; ++r) {
    if (r != context.rank) sockets[local_address(r)];
  }
  duplicate_sockets(sockets);
  std::vector<GlooConnection> connections(static_cast<std::size_t>(context.size));
  for (int r = 0; r < context.size; ++r) {
    if (r == context.rank) continue;
    GlooConnection& connection = connections[static_cast<std::size_t>(r)];
    connection.socket = std::move(sockets[local_address(r)]);
    connection.address = address_of(connection.socket.get(), ::getpeername);
    tune(connection.socket.get());
  }
  return connections;
}

std::string address_text(const std::vector<char>& address) {
  const gloo::transport::tcp::Address whole(address);
  // Without what only Gloo counts.
  return gloo::transport::tcp::Address(whole.getSockaddr()).str();
}

std::vector<GlooConnection> find_connections(const std::set<std::string>& addresses) {
  std::vector<GlooConnection> found;
  for (const int fd : descriptors()) {
    std::string theirs = address_of(fd, ::getpeername);
    if (theirs.empty()) continue;
    const std::string mine = address_of(fd, ::getsockname);
    if (!addresses.contains(theirs) && !addresses.contains(mine)) continue;
    found.push_back({UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), std::move(theirs)});
  }
  return found;
}

int rank_named(const std::vector<GlooConnection>& connections, std::string_view text) noexcept {
  for (std::size_t r = 0; r < connections.size(); ++r) {
    const std::string_view address = connections[r].address;
    const std::size_t at = address.empty() ? text.npos : text.find(address);
    if (at == text.npos) continue;
    // Port 123 is not port 1234, which follows the same host.
    const std::string_view rest = text.substr(at + address.size());
    if (rest.empty() || rest.front() < '0' || rest.front() > '9') return static_cast<int>(r);
  }
  return -1;
}

int first_ended(const std::vector<GlooConnection>& connections) noexcept {
  for (std::size_t r = 0; r < connections.size(); ++r) {
    if (!connections[r].socket) continue;
    pollfd entry{connections[r].socket.get(), POLLRDHUP, 0};
    if (::poll(&entry, 1, 0) > 0) return static_cast<int>(r);
  }
  return -1;
}

void hang_up(const std::vector<GlooConnection>& connections) noexcept {
  for (const GlooConnection& connection : connections) {
    if (connection.socket) ::shutdown(connection.socket.get(), SHUT_RDWR);
  }
}

void close_gently(std::vector<GlooConnection>& connections) noexcept {
  for (GlooConnection& connection : connections) {
    if (!connection.socket) continue;
    const linger in_background{.l_onoff = 0, .l_linger = 0};
    ::setsockopt(connection.socket.get(), SOL_SOCKET, SO_LINGER, &in_background,
                 sizeof(in_background));
    connection.socket.reset();
  }
}

}  // namespace ddprun::worker_sdk
