#include "rendezvous/net/listener.h"

#include <malloc.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>

#include "common/system/log.h"
#include "rendezvous/net/accept_loop.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/turnstile.h"

namespace ddprun::rendezvous {

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
  void ready(Turnstile::Id id);
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
      [core = shared_from_this(), id] { core->ready(id); });
  crowd_ = std::max(crowd_, handshakes_.size());
}

void Listener::Core::ready(Turnstile::Id id) {
  if (turnstile_.enter(id, Clock::now())) return handshakes_.at(id)->proceed();
  let_in();
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
  const auto line = complaints_.say(
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
