#include "worker_sdk/gloo/gloo_mesh.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/system/folder.h"
#include "ddprun/error.h"
#include "worker_sdk/gloo/gloo_backend.h"

namespace ddprun::worker_sdk {

// Closes like the base's destructor, but while this is still a GlooPair: after the change of state
// there are no more events.
GlooPair::~GlooPair() {
  const std::lock_guard lock(m_);
  if (state_ != CLOSED) Pair::changeState(CLOSED);
}

// Handles events like the base. The holder of the lock may wait for this thread; if the lock is
// taken, the events arrive again later.
void GlooPair::handleEvents(int events) {
  const std::unique_lock lock(m_, std::try_to_lock);
  if (!lock || ex_) return;
  try {
    if (state_ == CONNECTED) handleReadWrite(events);
    if (state_ == CONNECTING) return handleConnecting();
    if (state_ == LISTENING) return handleListening();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

// The lock is held. Operations that wait on this pair get the error, and so does the peer, if it is
// there.
void GlooPair::give_up(const char* why) {
  if (ex_) return;
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  // An accepted connection that is not yet in Gloo's loop: the base would try to remove it from the
  // loop.
  if (fd_ >= 0 && state_ == LISTENING) ::close(std::exchange(fd_, -1));
  signalException(std::string("Gloo gave up a connection: ") + why);
}

namespace {

[[noreturn]] void throw_system(const std::string& text) {
  throw Error(ErrorKind::system, {.operation = "connecting to the peers"}, text);
}

void set_port(sockaddr_storage& address, std::uint16_t port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
}

// As Gloo listens. Empty, and errno is why.
UniqueFd gloo_listener(const sockaddr_storage& address, socklen_t size) {
  UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket) return {};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return {};
  if (::listen(socket.get(), 1) != 0) return {};
  return socket;
}

}  // namespace

void GlooPair::move_to(const PortRange& ports) {
  const std::lock_guard lock(m_);
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_system(std::string("getsockname: ") + std::strerror(errno));
  }
  // Pairs of one process, and of several, try different ports first.
  const auto start = static_cast<std::uint64_t>(::getpid()) * 16 + static_cast<std::uint64_t>(fd_);
  for (int i = 0; i < ports.size(); ++i) {
    set_port(address, ports.port(start, i));
    UniqueFd socket = gloo_listener(address, size);
    if (!socket && errno == EADDRINUSE) continue;
    if (!socket) throw_system(std::string("listening: ") + std::strerror(errno));
    replace_descriptor(std::move(socket), [this] {
      self_ = gloo::transport::tcp::Address::fromSockName(fd_);
      device_->registerDescriptor(fd_, EPOLLIN, this);
    });
    return;
  }
  throw_system("each port of " + std::string(kPortRangeVariable) + "=" + ports.text() +
               " is taken; a rank needs one for each other rank while they connect");
}

void GlooPair::adopt(UniqueFd socket) {
  const std::lock_guard lock(m_);
  throwIfException();
  is_client_ = true;
  replace_descriptor(std::move(socket), [this] { handleConnected(); });
}

// The lock is held. `enter` puts the new descriptor into Gloo's loop. If that fails, for example
// because the peer is gone, it is closed here: the base's destructor would remove it from the loop,
// which has not got it, and end the process by that.
void GlooPair::replace_descriptor(UniqueFd socket, const std::function<void()>& enter) {
  device_->unregisterDescriptor(fd_, this);
  ::close(std::exchange(fd_, socket.release()));
  try {
    enter();
  } catch (const std::exception& error) {
    give_up(error.what());
    throwIfException();
  }
}

void GlooPair::await_peer() {
  std::unique_lock lock(m_);
  throwIfException();
  waitUntilConnected(lock, /*useTimeout=*/true);
}

std::unique_ptr<gloo::transport::Pair>& GlooPeers::createPair(int peer) {
  auto& pair = pairs_[static_cast<std::size_t>(peer)];
  auto made = std::make_unique<GlooPair>(this, device_.get(), peer, getTimeout());
  if (!ports.is_any()) made->move_to(ports);
  pair = std::move(made);
  return pair;
}

namespace {

// The address as Gloo writes it in its messages, which only Gloo itself reproduces: it swaps the
// port's bytes. Empty if there is none. `get`: getsockname or getpeername.
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

// Duplicates those connected descriptors of this process that have one of the local addresses.
void duplicate_sockets(std::map<std::string, UniqueFd>& by_local_address) {
  for (const int fd : descriptors()) {
    const auto wanted = by_local_address.find(address_of(fd, ::getsockname));
    if (wanted == by_local_address.end() || address_of(fd, ::getpeername).empty()) continue;
    wanted->second = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
}

// Whether both ends have the same address, ports aside.
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
  // Without the sequence number, which only Gloo uses.
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

// Relayed connections begin at one address: of these the one is meant that has ended.
int rank_named(const std::vector<GlooConnection>& connections, std::string_view text) noexcept {
  const auto is_shared = [&](std::string_view address) {
    return std::count_if(connections.begin(), connections.end(),
                         [&](const GlooConnection& one) { return one.address == address; }) > 1;
  };
  for (std::size_t r = 0; r < connections.size(); ++r) {
    const std::string_view address = connections[r].address;
    const std::size_t at = address.empty() ? text.npos : text.find(address);
    if (at == text.npos) continue;
    // Port 123 is not port 1234, which follows the same host.
    const std::string_view rest = text.substr(at + address.size());
    if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') continue;
    return is_shared(address) ? first_ended(connections) : static_cast<int>(r);
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

namespace {

// The addresses of all pairs of this rank, and those of its peers that they connect to.
struct Ends {
  std::mutex mutex;
  std::set<std::string> addresses;

  void add(const std::vector<char>& address) {
    const std::lock_guard lock(mutex);
    addresses.insert(address_text(address));
  }
  std::vector<GlooConnection> connections() {
    const std::lock_guard lock(mutex);
    return find_connections(addresses);
  }
};

// A wait for a connection ends when its pair is closed. Gloo would reset the connection, and a peer
// of an older ddprun that accepts it only then would end, so we close it ourselves.
void close_all(gloo::transport::Context& peers, Ends& ends) noexcept {
  std::vector<GlooConnection> connections = ends.connections();
  for (int peer = 0; peer < peers.size; ++peer) {
    if (peer == peers.rank) continue;
    try {
      peers.getPair(peer)->close();
    } catch (const std::exception&) {
      // The pair's wait ends by its time-out.
    }
  }
  close_gently(connections);
}

}  // namespace

namespace {

const sockaddr* as_sockaddr(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

std::uint16_t port_in(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string host_in(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return ::inet_ntop(address.ss_family, bytes, text.data(), text.size()) ? text.data() : "";
}

// A connection to a rank of another node, on its way.
struct DirectTry {
  int peer = 0;
  std::string node;
  sockaddr_storage address{};
  UniqueFd socket;
  std::string failure{};
};

// Longer than a lost SYN takes, twice.
constexpr std::chrono::milliseconds kDirectLimit{5'000};

void begin_try(DirectTry& attempt) {
  const auto family = attempt.address.ss_family;
  attempt.socket.reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const bool fails = !attempt.socket ||
                     (::connect(attempt.socket.get(), as_sockaddr(attempt.address), size) != 0 &&
                      errno != EINPROGRESS);
  if (fails) attempt.failure = std::strerror(errno), attempt.socket.reset();
}

// Waits for all of them together; those that fail, or take longer, lose their socket.
void finish_tries(std::vector<DirectTry>& attempts, Clock::time_point latest,
                  const std::function<void()>& check) {
  const auto deadline = std::min(latest, Clock::now() + kDirectLimit);
  constexpr std::chrono::milliseconds kLook{100};
  for (DirectTry& attempt : attempts) {
    while (attempt.socket) {
      pollfd entry{attempt.socket.get(), POLLOUT, 0};
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::min(Clock::now(), deadline));
      const int ready = ::poll(&entry, 1, static_cast<int>(std::min(left, kLook).count()));
      check();
      if (ready <= 0 && Clock::now() < deadline) continue;
      int error = ready > 0 ? 0 : ETIMEDOUT;
      socklen_t size = sizeof(error);
      if (ready > 0) ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) break;
      attempt.failure = std::strerror(error);
      attempt.socket.reset();
    }
  }
}

}  // namespace

void GlooMesh::require_open(const RoundFence* fence) const {
  if (fence && fence->is_raised()) throw gloo::IoException("the round is over");
}

void GlooMesh::connect(gloo::rendezvous::Store& store,
                       std::shared_ptr<gloo::transport::Device> device, const PortRange& ports,
                       RoundFence* fence, const GlooRelay& relay) {
  const auto tcp = std::static_pointer_cast<gloo::transport::tcp::Device>(device);
  const auto peers = std::make_shared<GlooPeers>(tcp, rank, size);
  peers->setTimeout(getTimeout());
  peers->ports = ports;
  const auto ends = std::make_shared<Ends>();
  std::vector<char> mine;
  std::vector<std::uint16_t> listening;
  std::string host;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto& pair = peers->createPair(peer);
    pair->setLocalRank(0);  // Used by Gloo's own algorithms only.
    const auto bytes = pair->address().bytes();
    ends->add(bytes);
    mine.insert(mine.end(), bytes.begin(), bytes.end());
    const gloo::transport::tcp::Address own(bytes);
    listening.push_back(port_in(own.getSockaddr()));
    host = host_in(own.getSockaddr());
  }
  const auto heeds = !fence ? nullptr : fence->listen([peers, ends] { close_all(*peers, *ends); });
  try {
    const UniqueFd opened = relay.is_there() ? relay.open(host, listening) : UniqueFd();
    store.set(std::to_string(rank), mine);
    // The addresses of all peers are read before the first connection: a peer that cannot connect
    // reports that in place of its addresses, and the peers that it connects to would wait for it.
    std::vector<std::vector<char>> addresses(static_cast<std::size_t>(size));
    std::vector<std::string> nodes(static_cast<std::size_t>(size));  // Of those to be dialled.
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto theirs = store.get(std::to_string(peer));  // Waits for it.
      if (theirs.empty()) throw gloo::IoException(kPeerCannotConnect);
      if (opened) nodes[static_cast<std::size_t>(peer)] = relay.other_node(peer);
      addresses[static_cast<std::size_t>(peer)] = extractAddress(theirs, peer);
    }
    require_open(fence);
    // Between nodes that can be dialled the lower rank connects, directly or through the daemon.
    std::vector<DirectTry> attempts;
    for (int peer = rank + 1; peer < size; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      if (nodes[p].empty()) continue;
      const sockaddr_storage theirs = gloo::transport::tcp::Address(addresses[p]).getSockaddr();
      attempts.push_back({peer, nodes[p], theirs, {}});
      if (!relay.is_only_way(peer, host, host_in(theirs))) begin_try(attempts.back());
    }
    finish_tries(attempts, relay.deadline(), [&] { require_open(fence); });
    auto next = attempts.begin();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const auto p = static_cast<std::size_t>(peer);
      const std::vector<char>& address = addresses[p];
      ends->add(address);
      auto& pair = static_cast<GlooPair&>(*peers->getPair(peer));
      if (next != attempts.end() && next->peer == peer) {
        if (!next->socket) {
          next->socket = relay.dial(peer, next->node, port_in(next->address), next->failure);
        }
        ends->add(gloo::transport::tcp::Address::fromPeerName(next->socket.get()).bytes());
        pair.adopt(std::move(next++->socket));
      } else if (!nodes[p].empty()) {
        pair.await_peer();
      } else {
        pair.connect(address);
      }
      require_open(fence);
    }
  } catch (const std::exception&) {  // Among others, of a pair that was closed before it connected.
    require_open(fence);
    throw;
  }
  device_ = std::move(device);
  transportContext_ = peers;
}

}  // namespace ddprun::worker_sdk
