#include "rendezvous/net/listener.h"

#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <map>

#include "common/ports.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/peer_user.h"
#include "rendezvous/net/turnstile.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

UniqueFd new_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

std::string describe(const std::string& address, std::uint16_t port) {
  std::string text = "listening on port " + std::to_string(port);
  if (!address.empty()) text += " of " + address;
  return text;
}

Failure bind_failure(const std::string& address, std::uint16_t port) {
  Failure failure = errno_failure(describe(address, port));
  if (failure.code.value() == EADDRINUSE) {
    const std::string owner = port_owner(port);
    if (!owner.empty()) failure.context += ", which " + owner + " holds";
  }
  return failure;
}

Result<UniqueFd> listen_on(const tcp::endpoint& endpoint, const std::string& address) {
  UniqueFd fd = new_socket(endpoint.protocol().family());
  if (!fd) return errno_failure(describe(address, endpoint.port()));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool every_address = address.empty() || endpoint.address().is_unspecified();
  if (endpoint.address().is_v6()) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, !every_address);
  if (::bind(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return bind_failure(address, endpoint.port());
  }
  return fd;
}

using NameCall = int(int, sockaddr*, socklen_t*);

tcp::endpoint endpoint_of(int fd, NameCall* call) {
  tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (call(fd, endpoint.data(), &size) != 0) return {};
  endpoint.resize(size);
  return endpoint;
}

boost::asio::ip::address plain(const boost::asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
}

// What accept() reports about a connection that died while it waited, or about this process for a
// moment.
bool passing(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == ENETDOWN ||
         error == EHOSTDOWN || error == EHOSTUNREACH || error == ENETUNREACH || error == ENONET;
}

}  // namespace

namespace {

Result<UniqueFd> listen_at(const std::string& address, std::uint16_t port) {
  if (address.empty()) {
    Result<UniqueFd> both = listen_on({boost::asio::ip::address_v6::any(), port}, address);
    if (both || both.error().code.value() != EAFNOSUPPORT) return both;
    return listen_on({boost::asio::ip::address_v4::any(), port}, address);
  }
  boost::system::error_code malformed;
  const auto numeric = boost::asio::ip::make_address(address, malformed);
  if (malformed) return Failure{Errc::kBadOption, "'" + address + "' is not a numeric address"};
  return listen_on({numeric, port}, address);
}

}  // namespace

Result<UniqueFd> listen_on_loopback() { return listen_at("127.0.0.1", 0); }

// Port 0 stands for one of the ports of DDPRUN_PORT_RANGE, if it is set.
Result<UniqueFd> listen_socket(const std::string& address, std::uint16_t port) {
  const std::string range = environment_variable(kPortRangeVariable);
  if (port != 0 || range.empty()) return listen_at(address, port);
  const auto ports = port_range_of(range);
  if (!ports) {
    return Failure{Errc::kBadOption, std::string(kPortRangeVariable) + "=" + range.substr(0, 100) +
                                         " is no range of ports such as 29500-29599"};
  }
  for (int i = 0; i < ports->size(); ++i) {
    auto listening = listen_at(address, ports->port(static_cast<std::uint64_t>(::getpid()), i));
    if (listening || listening.error().code != std::errc::address_in_use) return listening;
  }
  return Failure{Errc::kBadOption, "each port of " + std::string(kPortRangeVariable) + "=" + range +
                                       " is taken; see docs/environment.md, \"Firewalls\""};
}

Result<std::optional<AcceptedSocket>> accept_socket(int listening_fd) {
  for (;;) {
    tcp::endpoint peer;
    auto size = static_cast<socklen_t>(peer.capacity());
    UniqueFd fd(::accept4(listening_fd, peer.data(), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      const auto local = local_address(fd.get());
      return AcceptedSocket{std::move(fd), plain(peer.address()), local};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<AcceptedSocket>();
    if (!passing(errno)) return errno_failure("accepting a connection");
  }
}

Result<UniqueFd> client_socket(const boost::asio::ip::address& towards) {
  UniqueFd fd = new_socket(towards.is_v6() ? AF_INET6 : AF_INET);
  if (!fd) return errno_failure("making a socket");
  return fd;
}

void tune_socket(int fd, Milliseconds user_timeout) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Zero, too: the socket may have been a link's before.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count()));
}

// If "reno" is refused, nothing is lost.
void spare_congestion_control(int fd) {
  constexpr std::string_view kPlain = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

std::uint16_t local_port(int fd) { return endpoint_of(fd, ::getsockname).port(); }
boost::asio::ip::address local_address(int fd) {
  return plain(endpoint_of(fd, ::getsockname).address());
}
boost::asio::ip::address peer_address(int fd) {
  return plain(endpoint_of(fd, ::getpeername).address());
}

namespace {

constexpr int kAcceptsPerTurn = 64;  // So that connections that exist are served between new ones.
constexpr Milliseconds kPause(50);   // After a failure such as "too many open files".
constexpr Milliseconds kShortagePatience(2000);

}  // namespace

AcceptLoop::AcceptLoop(boost::asio::io_context& io, OnSocket on_socket, OnShort on_short)
    : acceptor_(io), pause_(io), on_socket_(std::move(on_socket)), on_short_(std::move(on_short)) {
  if (!on_short_) on_short_ = [](const std::string& complaint) { log::warning(complaint); };
}

std::shared_ptr<AcceptLoop> AcceptLoop::start(boost::asio::io_context& io, UniqueFd listening,
                                              OnSocket on_socket, OnShort on_short) {
  std::shared_ptr<AcceptLoop> loop(new AcceptLoop(io, std::move(on_socket), std::move(on_short)));
  const auto protocol = local_address(listening.get()).is_v6() ? boost::asio::ip::tcp::v6()
                                                               : boost::asio::ip::tcp::v4();
  loop->acceptor_.assign(protocol, listening.release());
  loop->wait();
  return loop;
}

void AcceptLoop::stop() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void AcceptLoop::wait() {
  acceptor_.async_wait(boost::asio::ip::tcp::acceptor::wait_read,
                       [self = shared_from_this()](boost::system::error_code error) {
                         if (!error && self->acceptor_.is_open()) self->take();
                       });
}

void AcceptLoop::take() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Result<std::optional<AcceptedSocket>> accepted = accept_socket(acceptor_.native_handle());
    if (!accepted) {
      outlast(accepted.error());
      return pause();
    }
    if (!*accepted) break;
    reported_ = closes_ = false;
    on_socket_(std::move(**accepted));
    if (!acceptor_.is_open()) return;
  }
  wait();
}

// Each is reported once per shortage.
void AcceptLoop::outlast(const Failure& failure) {
  const auto now = std::chrono::steady_clock::now();
  if (!reported_) {
    on_short_(to_string(failure) + "; retrying until this is over");
    short_since_ = now;
  }
  reported_ = true;
  const int error = failure.code.value();
  const bool is_short = error == EMFILE || error == ENFILE;
  if (!is_short || now - short_since_ < kShortagePatience) return;
  if (spare_.turn_away(acceptor_.native_handle()) == 0 || closes_) return;
  closes_ = true;
  on_short_(to_string(failure) +
            "; closing new connections until this is over, so that their other ends do not wait "
            "for an answer");
}

// The connection that could not be taken is still waiting, so that waiting for it would return at
// once.
void AcceptLoop::pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && self->acceptor_.is_open()) self->take();
  });
}

using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kCrowd = 256;  // Handshakes at once that leave much memory behind.

class Listener::Core : public std::enable_shared_from_this<Listener::Core> {
 public:
  Core(boost::asio::io_context& io, ListenOptions options, TlsContext tls,
       std::function<void(std::shared_ptr<Link>)> on_link)
      : io_(io),
        options_(std::move(options)),
        tls_(std::move(tls)),
        on_link_(std::move(on_link)),
        turnstile_(options_.handshakes_at_once, options_.handshake_patience),
        turn_timer_(io) {}

  void start(UniqueFd listening);
  void close();

  std::uint16_t port = 0;
  RefusalCounts refused;
  std::size_t link_count() const { return static_cast<std::size_t>(slot_.use_count()) - 1; }
  std::size_t handshake_count() const { return handshakes_.size(); }

 private:
  void take(AcceptedSocket accepted);
  void begin_handshake(AcceptedSocket accepted);
  void ready(Turnstile::Id id, const boost::asio::ip::address& peer,
             const boost::asio::ip::address& local);
  void hand_over(Turnstile::Id id, const boost::asio::ip::address& peer,
                 const boost::asio::ip::address& local);
  void let_in();
  void finish_handshake(Turnstile::Id id, const std::string& peer, Result<Connected> connected);
  void give_back_memory();
  void refuse(Refusal refusal, const std::string& peer, const std::string& why);
  std::unique_ptr<Channel> make_channel(int fd) const {
    return tls_ ? make_tls_channel(fd, tls_, TlsRole::kServer) : make_plain_server(fd);
  }

  boost::asio::io_context& io_;
  const ListenOptions options_;
  const TlsContext tls_;  // Null without a token.
  const std::function<void(std::shared_ptr<Link>)> on_link_;
  std::shared_ptr<AcceptLoop> accept_loop_;
  std::map<Turnstile::Id, std::shared_ptr<Handshake>> handshakes_;  // Oldest first.
  Turnstile::Id next_id_ = 0;
  Turnstile turnstile_;
  boost::asio::steady_timer turn_timer_;
  std::optional<TimePoint> turn_due_;
  std::size_t crowd_ = 0;  // The most at once since there were none.
  std::shared_ptr<int> slot_ =
      std::make_shared<int>();  // Each link holds it too, until it is closed.
  Complaints complaints_;
};

void Listener::Core::start(UniqueFd listening) {
  port = local_port(listening.get());
  accept_loop_ = AcceptLoop::start(io_, std::move(listening),
                                   [weak = weak_from_this()](AcceptedSocket socket) {
                                     if (const auto core = weak.lock())
                                       core->take(std::move(socket));
                                   });
}

void Listener::Core::close() {
  if (accept_loop_) accept_loop_->stop();
  accept_loop_.reset();
  turn_timer_.cancel();
  for (const auto& [id, handshake] : handshakes_) handshake->cancel();
  handshakes_.clear();
}

void Listener::Core::take(AcceptedSocket accepted) {
  if (link_count() + handshakes_.size() >= options_.connections_max) {
    return refuse(Refusal::kTooMany, accepted.peer.to_string(),
                  "there are already " + std::to_string(options_.connections_max) + " connections");
  }
  if (handshakes_.size() >= options_.handshakes_max) {
    handshakes_.begin()->second->cancel();
    turnstile_.leave(handshakes_.begin()->first);
    handshakes_.erase(handshakes_.begin());
    refused.add(Refusal::kHandshakeTimeout);
  }
  begin_handshake(std::move(accepted));
}

void Listener::Core::begin_handshake(AcceptedSocket accepted) {
  const int fd = accepted.fd.get();
  tune_socket(fd, options_.link.user_timeout);
  const auto protocol = accepted.local.is_v6() ? tcp::v6() : tcp::v4();
  Connected connection{tcp::socket(io_, protocol, accepted.fd.release()), make_channel(fd)};
  const Turnstile::Id id = next_id_++;
  handshakes_[id] = Handshake::start(
      std::move(connection), options_.handshake_timeout,
      [core = shared_from_this(), id, peer = accepted.peer.to_string()](
          Result<Connected> connected) { core->finish_handshake(id, peer, std::move(connected)); },
      [core = shared_from_this(), id, peer = accepted.peer, local = accepted.local] {
        core->ready(id, peer, local);
      });
  crowd_ = std::max(crowd_, handshakes_.size());
}

void Listener::Core::ready(Turnstile::Id id, const boost::asio::ip::address& peer,
                           const boost::asio::ip::address& local) {
  const bool may_be_store_client = tls_ && options_.on_store_client;
  if (may_be_store_client && handshakes_.at(id)->begins_as_store_client()) {
    return hand_over(id, peer, local);
  }
  if (turnstile_.enter(id, Clock::now())) return handshakes_.at(id)->proceed();
  let_in();
}

// The addresses are those that accept() saw: the kernel has none of a connection that was reset.
void Listener::Core::hand_over(Turnstile::Id id, const boost::asio::ip::address& peer,
                               const boost::asio::ip::address& local) {
  UniqueFd fd = handshakes_.at(id)->release();
  handshakes_.erase(id);
  options_.on_store_client({std::move(fd), peer, local});
}

void Listener::Core::let_in() {
  for (const Turnstile::Id id : turnstile_.admit(Clock::now())) handshakes_.at(id)->proceed();
  const auto due = turnstile_.deadline();
  if (!due || !accept_loop_ || due == std::exchange(turn_due_, due)) return;
  turn_timer_.expires_at(*due);
  turn_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto core = weak.lock();
    if (error || !core) return;
    core->turn_due_.reset();
    core->let_in();
  });
}

void Listener::Core::finish_handshake(Turnstile::Id id, const std::string& peer,
                                      Result<Connected> connected) {
  handshakes_.erase(id);
  turnstile_.leave(id);
  let_in();
  give_back_memory();
  if (!connected) {
    return refuse(refusal_of(connected.error().code), peer, to_string(connected.error()));
  }
  on_link_(Link::make(std::move(*connected), options_.link, slot_));
}

// A TLS handshake needs three times the memory of the link that it makes. After a crowd has come,
// that would stay with the allocator, in holes.
void Listener::Core::give_back_memory() {
  if (!handshakes_.empty()) return;
  if (std::exchange(crowd_, 0) < kCrowd) return;
  boost::asio::post(io_, [] { ::malloc_trim(0); });
}

void Listener::Core::refuse(Refusal refusal, const std::string& peer, const std::string& why) {
  refused.add(refusal);
  const auto line = complaints_.filter(
      peer + " " + name_of(refusal),
      "refused a connection from " + peer + " on port " + std::to_string(port) + ": " + why,
      Clock::now());
  if (line) log::warning(*line, {.peer = peer});
}

Result<std::unique_ptr<Listener>> Listener::open(
    boost::asio::io_context& io, ListenOptions options,
    std::function<void(std::shared_ptr<Link>)> on_link) {
  TlsContext tls;
  if (!options.token.empty()) {
    Result<TlsContext> made = make_tls_context(TlsRole::kServer, options.token);
    if (!made) return made.error();
    tls = std::move(*made);
  }
  Result<UniqueFd> listening = options.listening_fd >= 0
                                   ? Result<UniqueFd>(UniqueFd(options.listening_fd))
                                   : listen_socket(options.address, options.port);
  if (!listening) return listening.error();
  auto core = std::make_shared<Core>(io, std::move(options), std::move(tls), std::move(on_link));
  core->start(std::move(*listening));
  return std::unique_ptr<Listener>(new Listener(std::move(core)));
}

Listener::~Listener() { close(); }
std::uint16_t Listener::port() const { return core_->port; }
void Listener::close() { core_->close(); }
std::size_t Listener::link_count() const { return core_->link_count(); }
std::size_t Listener::handshake_count() const { return core_->handshake_count(); }
std::size_t Listener::refused_count() const { return core_->refused.total(); }
RefusalCounts Listener::refused() const { return core_->refused; }

}  // namespace ddprun::rendezvous
